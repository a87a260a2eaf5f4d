// The entry point of the plug-in (nccl_plugin.h).
#include "device/device_plugin.h"
#include "kvtransfer/nccl/nccl_communicator.h"
#include "kvtransfer/nccl/nccl_plugin.h"

extern "C" __attribute__((visibility("default"))) const baton::kvtransfer::NcclPlugin*
BatonNcclPlugin() {
  static const baton::kvtransfer::NcclPlugin plugin = {
      .abi_id = baton::DevicePluginAbiId(),
      .count = &baton::kvtransfer::CountGpusForNccl,
      .create = &baton::kvtransfer::CreateNcclCommunicators};
  return &plugin;
}
