// The CUDA device for tests, through the plug-in: the way the program gets it.
#ifndef BATON_TESTS_GPU_GPU_TESTING_H_
#define BATON_TESTS_GPU_GPU_TESTING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "device/device_plugin.h"

namespace baton {

// The plug-in beside this program or in ../bin. ERRORS: of LoadDevicePlugin.
absl::StatusOr<const DevicePlugin*> CudaPlugin();
// Whether it finds a GPU here.
bool HasCudaDevice();
// REQUIRES: HasCudaDevice(). Ends the process on errors.
std::unique_ptr<Device> MakeCudaDevice(const PluginDeviceOptions& options = {});

#define SKIP_WITHOUT_CUDA_DEVICE() \
  if (!HasCudaDevice()) {          \
    GTEST_SKIP() << "no GPU";      \
  }

}  // namespace baton

#endif  // BATON_TESTS_GPU_GPU_TESTING_H_
