#include "kvtransfer/nccl/gpu_wire_testing.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kvtransfer/nccl/nccl_wire.h"
#include "kvtransfer/nccl/staged_end.h"
#include "kvtransfer/nccl/two_process_wire.h"

namespace baton::kvtransfer {
namespace {

std::string InBin(const char* file) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "bin" / file).string();
}

absl::StatusOr<int> CountGpus() {
  ASSIGN_OR_RETURN(const NcclPlugin* plugin, NcclPluginForTests());
  return plugin->count();
}

}  // namespace

absl::StatusOr<const NcclPlugin*> NcclPluginForTests() {
  const auto plugin = LoadNcclPlugin();
  return absl::IsNotFound(plugin.status()) ? LoadNcclPluginAt(InBin(kNcclPluginFile)) : plugin;
}

std::string WhyNotTwoGpus() {
  const absl::StatusOr<int> count = CountGpus();
  if (count.ok() && *count >= 2) return "";
  return absl::StrCat("needs two GPUs: ", count.ok() ? absl::StrCat("there is ", *count)
                                                     : std::string(count.status().message()));
}

std::string WhyNoNcclPair() {
  const std::string why_not = WhyNotTwoGpus();
  if (why_not.empty() || CountGpus().value_or(0) == 0) return why_not;
  const auto communicators = (*NcclPluginForTests())->create({});
  return communicators.ok() && (*communicators)->accepts_shared_device() ? "" : why_not;
}

int NcclPeerOrdinal() { return CountGpus().value_or(0) >= 2 ? 1 : 0; }

absl::StatusOr<std::unique_ptr<Wire>> MakeHostStagedNcclWire(int ordinal, bool listens) {
  auto device_plugin = LoadDevicePlugin("libbaton_cuda.so");
  if (absl::IsNotFound(device_plugin.status())) {
    device_plugin = LoadDevicePluginAt(InBin("libbaton_cuda.so"));
  }
  RETURN_IF_ERROR(device_plugin.status());
  ASSIGN_OR_RETURN(const NcclPlugin* plugin, NcclPluginForTests());
  PluginDeviceOptions device_options;
  device_options.ordinal = ordinal;
  device_options.log_level = CurrentLogLevel();
  ASSIGN_OR_RETURN(std::unique_ptr<Device> made, (*device_plugin)->create(device_options));
  const std::shared_ptr<Device> device = std::move(made);
  ASSIGN_OR_RETURN(auto communicators,
                   plugin->create({.ordinal = ordinal, .log_level = CurrentLogLevel()}));
  NcclWireOptions options;
  options.listens = listens;
  options.fall_back = false;
  options.num_ctas = 2;
  options.communicators_max = 32;
  ASSIGN_OR_RETURN(std::unique_ptr<Wire> wire,
                   MakeNcclWire(options, std::move(communicators), device.get()));
  return std::make_unique<DecoratedWire>(
      std::move(wire), [device](std::unique_ptr<WireEnd> end) -> std::unique_ptr<WireEnd> {
        return std::make_unique<StagedEnd>(std::move(end), StagingPlace::kDevice, device.get());
      });
}

}  // namespace baton::kvtransfer
