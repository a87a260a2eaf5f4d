// The real NCCL wire for tests whose memory is that of the host: buffers in memory of the GPU are
// put between. Needs the plug-ins, which lie beside the program or in ../bin.
#ifndef BATON_KVTRANSFER_NCCL_GPU_WIRE_TESTING_H_
#define BATON_KVTRANSFER_NCCL_GPU_WIRE_TESTING_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/device_plugin.h"
#include "kvtransfer/nccl/nccl_plugin.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// ERRORS: of LoadNcclPlugin.
absl::StatusOr<const NcclPlugin*> NcclPluginForTests();
// Empty when this machine has two GPUs that NCCL can use, else why what needs them is skipped.
std::string WhyNotTwoGpus();
// Empty when two processes of this machine can use NCCL, else why tests are skipped: there are two
// GPUs, or one that the library accepts twice (PairCommunicators::accepts_shared_device).
std::string WhyNoNcclPair();
// Of the GPU of the second process: 1, or 0 where both share one.
int NcclPeerOrdinal();
// Named "nccl": its pairs fail rather than fall back. `ordinal`: of the GPU of this process.
absl::StatusOr<std::unique_ptr<Wire>> MakeHostStagedNcclWire(int ordinal, bool listens);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_GPU_WIRE_TESTING_H_
