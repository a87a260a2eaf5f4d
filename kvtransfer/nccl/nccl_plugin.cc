#include "kvtransfer/nccl/nccl_plugin.h"

#include "common/base/status_macros.h"
#include "device/device_plugin.h"

namespace baton::kvtransfer {

absl::StatusOr<const NcclPlugin*> LoadNcclPlugin() {
  ASSIGN_OR_RETURN(const PluginHeader* plugin,
                   LoadPlugin(kNcclPluginFile, kNcclPluginEntry, kNcclPluginMagic));
  return reinterpret_cast<const NcclPlugin*>(plugin);
}

absl::StatusOr<const NcclPlugin*> LoadNcclPluginAt(const std::string& path) {
  ASSIGN_OR_RETURN(const PluginHeader* plugin,
                   LoadPluginAt(path, kNcclPluginEntry, kNcclPluginMagic));
  return reinterpret_cast<const NcclPlugin*>(plugin);
}

}  // namespace baton::kvtransfer
