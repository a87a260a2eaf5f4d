// The plug-in that brings NCCL (device/device_plugin.h says why plug-ins): `baton` links none of
// it. Thread rule: load at start, from one thread.
#ifndef BATON_KVTRANSFER_NCCL_NCCL_PLUGIN_H_
#define BATON_KVTRANSFER_NCCL_NCCL_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/log.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

inline constexpr char kNcclPluginFile[] = "libbaton_nccl.so";
inline constexpr char kNcclPluginEntry[] = "BatonNcclPlugin";
inline constexpr uint32_t kNcclPluginMagic = 0x42544E33;  // "BTN3"

struct NcclPluginOptions {
  int ordinal = 0;  // Of the GPU.
  LogLevel log_level = LogLevel::kInfo;
};

// What the entry point returns; lives as long as the process. Begins like PluginHeader.
struct NcclPlugin {
  uint32_t magic = kNcclPluginMagic;
  const char* abi_id = nullptr;
  // GPUs that it could use here. ERRORS: FailedPrecondition: no driver, or one that does not match.
  absl::StatusOr<int> (*count)() = nullptr;
  // ERRORS: NotFound: no such ordinal; FailedPrecondition: no driver, or another library than the
  // plug-in was built for.
  absl::StatusOr<std::unique_ptr<PairCommunicators>> (*create)(const NcclPluginOptions&) = nullptr;
};

// ERRORS: of LoadPlugin.
absl::StatusOr<const NcclPlugin*> LoadNcclPlugin();
absl::StatusOr<const NcclPlugin*> LoadNcclPluginAt(const std::string& path);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_PLUGIN_H_
