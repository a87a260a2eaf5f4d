// Accelerators that `baton` does not link: each is a shared object with one entry point, loaded
// when it is asked for or found, and never unloaded. What passes through the entry point is C++
// (Device, absl::Status), so both sides must come from builds that agree on it: the ABI id, a hash
// over the headers of this seam and the compiler, is compared before anything else is called.
//
// Why not link them: the same binary must run where there is no driver, and libcublasLt carries so
// much static thread-local storage that threads with small stacks cannot start in a process that is
// linked with it.
//
// Thread rule: call at start, from one thread.
#ifndef BATON_DEVICE_DEVICE_PLUGIN_H_
#define BATON_DEVICE_DEVICE_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "device/device.h"

namespace baton {

inline constexpr char kDevicePluginEntry[] = "BatonDevicePlugin";
inline constexpr uint32_t kDevicePluginMagic = 0x42544E31;  // "BTN1"

struct PluginDeviceOptions {
  int ordinal = 0;  // Of the accelerator on this machine.
  // Fixed tiles and reduction orders: the bits of a row do not depend on the rest of its batch.
  bool deterministic = false;
  // Where tuned choices are kept between starts; empty: nowhere.
  std::string cache_directory;
  LogLevel log_level = LogLevel::kInfo;
};

// What the entry point returns; lives as long as the process. The first two fields never move.
struct DevicePlugin {
  uint32_t magic = kDevicePluginMagic;
  const char* abi_id = nullptr;
  // Accelerators that it could use here. ERRORS: FailedPrecondition: no driver, or one that does
  // not match, with what was found.
  absl::StatusOr<int> (*count)() = nullptr;
  // ERRORS: NotFound: no such ordinal; FailedPrecondition: too old, or no driver;
  // ResourceExhausted: its memory is taken.
  absl::StatusOr<std::unique_ptr<Device>> (*create)(const PluginDeviceOptions&) = nullptr;
};

// What any plug-in's entry point returns begins with these two fields.
struct PluginHeader {
  uint32_t magic = 0;
  const char* abi_id = nullptr;
};

// Of this build.
const char* DevicePluginAbiId();

// For other kinds of plug-ins (kvtransfer/nccl): loads `file` as below and calls `entry`. What it
// returns has begun with `magic` and this build's ABI id.
absl::StatusOr<const PluginHeader*> LoadPlugin(const std::string& file, const char* entry,
                                               uint32_t magic);
absl::StatusOr<const PluginHeader*> LoadPluginAt(const std::string& path, const char* entry,
                                                 uint32_t magic);

// Loads `file` from the folder of the running program or ../lib/baton beside it.
// ERRORS: NotFound: no such file; FailedPrecondition: it cannot be loaded, is no plug-in, or comes
// from another build.
absl::StatusOr<const DevicePlugin*> LoadDevicePlugin(const std::string& file);
// The same for a path, for tests.
absl::StatusOr<const DevicePlugin*> LoadDevicePluginAt(const std::string& path);

}  // namespace baton

#endif  // BATON_DEVICE_DEVICE_PLUGIN_H_
