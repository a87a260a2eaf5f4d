// Flags that choose the device of a worker.
#ifndef BATON_CLI_DEVICE_FLAGS_H_
#define BATON_CLI_DEVICE_FLAGS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

struct DeviceFlags {
  std::string device = "auto";
  bool deterministic = false;
  std::string cache_directory;
};

void AddDeviceFlags(CLI::App& command, DeviceFlags& flags);

// `cpu_threads`: of the CPU device; 0: all cores. "auto" takes GPU 0 when the plug-in is installed
// and finds a GPU that it can use, and the CPU otherwise (a GPU that is there but cannot be used is
// named in a warning). ERRORS: InvalidArgument: no such device name; NotFound, FailedPrecondition:
// the device that was asked for is not there, or cannot be used, and why.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceFlags& flags, int32_t cpu_threads);

}  // namespace baton::cli

#endif  // BATON_CLI_DEVICE_FLAGS_H_
