// The entry point of the plug-in (device/device_plugin.h).
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_error.h"
#include "device/device_plugin.h"

namespace baton {
namespace {

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const absl::Status status = CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs");
  if (!status.ok()) return status;
  return count;
}

}  // namespace
}  // namespace baton

extern "C" __attribute__((visibility("default"))) const baton::DevicePlugin* BatonDevicePlugin() {
  static const baton::DevicePlugin plugin = {.abi_id = baton::DevicePluginAbiId(),
                                             .count = &baton::CountGpus,
                                             .create = &baton::CreateCudaDevice};
  return &plugin;
}
