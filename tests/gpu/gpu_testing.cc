#include "tests/gpu/gpu_testing.h"

#include <filesystem>
#include <string>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr char kFile[] = "libbaton_cuda.so";

}  // namespace

absl::StatusOr<const DevicePlugin*> CudaPlugin() {
  auto plugin = LoadDevicePlugin(kFile);
  if (plugin.ok() || !absl::IsNotFound(plugin.status())) return plugin;
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return LoadDevicePluginAt((program.parent_path().parent_path() / "bin" / kFile).string());
}

bool HasCudaDevice() {
  static const bool has = [] {
    const auto plugin = CudaPlugin();
    CHECK(plugin.ok()) << plugin.status();
    const auto count = (*plugin)->count();
    return count.ok() && *count > 0;
  }();
  return has;
}

std::unique_ptr<Device> MakeCudaDevice(const PluginDeviceOptions& options) {
  const auto plugin = CudaPlugin();
  CHECK(plugin.ok()) << plugin.status();
  auto device = (*plugin)->create(options);
  CHECK(device.ok()) << device.status();
  return *std::move(device);
}

}  // namespace baton
