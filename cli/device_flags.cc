#include "cli/device_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "device/cpu/cpu_device.h"
#include "device/device_plugin.h"

namespace baton::cli {
namespace {

constexpr char kCudaPlugin[] = "libbaton_cuda.so";

// Where choices that took time to measure are kept between starts.
std::string DefaultCacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return absl::StrCat(cache, "/baton");
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != 0) return absl::StrCat(home, "/.cache/baton");
  return "";
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const DevicePlugin& plugin,
                                                       const DeviceFlags& flags, int ordinal) {
  PluginDeviceOptions options;
  options.ordinal = ordinal;
  options.deterministic = flags.deterministic;
  options.cache_directory =
      flags.cache_directory.empty() ? DefaultCacheDirectory() : flags.cache_directory;
  options.log_level = CurrentLogLevel();
  return plugin.create(options);
}

absl::StatusOr<std::unique_ptr<Device>> MakeCpuDevice(int32_t threads) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CpuDevice::Create({.threads = threads}));
  return device;
}

absl::StatusOr<std::unique_ptr<Device>> MakeAnyDevice(const DeviceFlags& flags, int32_t threads) {
  const absl::StatusOr<const DevicePlugin*> plugin = LoadDevicePlugin(kCudaPlugin);
  if (plugin.ok()) {
    const absl::StatusOr<int> count = (*plugin)->count();
    absl::Status status = count.status();
    if (count.ok() && *count > 0) {
      absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(**plugin, flags, 0);
      if (device.ok()) return device;
      status = device.status();
    }
    if (!status.ok()) LogWarning("no GPU is used", {{"reason", status.message()}});
  } else if (!absl::IsNotFound(plugin.status())) {
    LogWarning("the CUDA plug-in is not used", {{"reason", plugin.status().message()}});
  }
  return MakeCpuDevice(threads);
}

}  // namespace

void AddDeviceFlags(CLI::App& command, DeviceFlags& flags) {
  command.add_option("--device", flags.device,
                     "auto, cpu, cuda or cuda:N; auto takes the first GPU if there is one");
  command.add_flag("--deterministic", flags.deterministic,
                   "On a GPU: tokens do not depend on the rest of the batch, bit by bit; slower");
  command.add_option("--cache", flags.cache_directory,
                     "Folder for what a GPU's start-up has measured; empty: ~/.cache/baton");
}

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceFlags& flags, int32_t cpu_threads) {
  if (flags.device == "auto") return MakeAnyDevice(flags, cpu_threads);
  if (flags.device == "cpu") return MakeCpuDevice(cpu_threads);
  int ordinal = 0;
  absl::string_view number = flags.device;
  const bool is_cuda =
      flags.device == "cuda" ||
      (absl::ConsumePrefix(&number, "cuda:") && absl::SimpleAtoi(number, &ordinal) && ordinal >= 0);
  if (!is_cuda) {
    return absl::InvalidArgumentError(absl::StrCat("--device: '", absl::CHexEscape(flags.device),
                                                   "' is none of auto, cpu, cuda, cuda:N"));
  }
  const absl::StatusOr<const DevicePlugin*> plugin = LoadDevicePlugin(kCudaPlugin);
  absl::Status status = plugin.status();
  if (plugin.ok()) {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(**plugin, flags, ordinal);
    if (device.ok()) return device;
    status = device.status();
  }
  return Annotate(status, absl::StrCat("--device ", flags.device));
}

}  // namespace baton::cli
