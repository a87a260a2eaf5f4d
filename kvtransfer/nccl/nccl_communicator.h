// PairCommunicators over the real NCCL and CUDA, for the plug-in. Thread rule: as there.
#ifndef BATON_KVTRANSFER_NCCL_NCCL_COMMUNICATOR_H_
#define BATON_KVTRANSFER_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvtransfer/nccl/nccl_plugin.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

// NcclPlugin::count and create.
absl::StatusOr<int> CountGpusForNccl();
absl::StatusOr<std::unique_ptr<PairCommunicators>> CreateNcclCommunicators(
    const NcclPluginOptions& options);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_COMMUNICATOR_H_
