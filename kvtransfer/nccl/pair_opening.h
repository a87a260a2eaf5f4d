// How the two ends of a connection agree on NCCL and make their communicator, or agree to go on as
// a TCP wire. Steps: opening (P), verdict (D), both make, both say whether they could. Blocks; on
// the pair's own thread. Messages are in pair_frames.h.
#ifndef BATON_KVTRANSFER_NCCL_PAIR_OPENING_H_
#define BATON_KVTRANSFER_NCCL_PAIR_OPENING_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "device/capture_gate.h"
#include "kvtransfer/nccl/owned_communicator.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

struct PairOpeningSetup {
  PairCommunicators* communicators = nullptr;
  CommunicatorBudget* budget = nullptr;
  CaptureGate* gate = nullptr;  // May be null.
  int num_ctas = 16;
};

struct OpenedPair {
  // Null: the pair goes on over TCP, and why.
  std::unique_ptr<OwnedCommunicator> communicator = nullptr;
  std::string why_tcp = {};
};

// `fd`: the connection; shutting it down makes this return soon. `*failed`: a communicator that was
// begun in vain and is being aborted, to be kept until it is quiet. ERRORS: Unavailable: the peer
// left; DeadlineExceeded; DataLoss: it speaks something else.
absl::StatusOr<OpenedPair> OpenPair(const PairOpeningSetup& setup, PairRole role, int fd,
                                    TimePoint deadline, std::unique_ptr<OwnedCommunicator>* failed);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_PAIR_OPENING_H_
