// What the wire asks of NCCL: communicators of two ranks, one per pair, each with a stream of its
// own on one GPU. Implementations: nccl_communicator.cc (the plug-in) and fake_communicator.h
// (tests).
//
// Thread rule: PairCommunicators is thread-safe. A PairCommunicator belongs to its pair's posting
// thread, but Abort and Destroy, of which one is called once, on another thread; from then on the
// posting thread calls nothing until it has returned, and then Quiet only.
#ifndef BATON_KVTRANSFER_NCCL_PAIR_COMMUNICATOR_H_
#define BATON_KVTRANSFER_NCCL_PAIR_COMMUNICATOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::kvtransfer {

enum class PairRole { kSender, kReceiver };

// With which the two ends find each other (ncclUniqueId).
using PairId = std::array<std::byte, 128>;
using DeviceUuid = std::array<std::byte, 16>;

class PairCommunicator {
 public:
  // REQUIRES: Quiet() has said true after Abort or Destroy.
  virtual ~PairCommunicator() = default;

  // True: Post may be called. False: still being made, or the last Post is still being launched;
  // ask again. ERRORS: Unavailable: it cannot be made, or has failed.
  virtual absl::StatusOr<bool> Ready() = 0;
  // Starts to send or to receive exactly `bytes`, which is not empty. Operations run one after the
  // other. Never waits. REQUIRES: Ready() has said true since the last Post; the peer posts, or has
  // posted, its half of the same size. ERRORS: InvalidArgument: no memory that the GPU can reach;
  // Unavailable.
  virtual absl::Status Post(absl::Span<std::byte> bytes) = 0;
  // How many operations have run to their end, so that their memory is touched no more. That a send
  // has says nothing about the peer. ERRORS: Unavailable.
  virtual absl::StatusOr<uint64_t> Completed() = 0;

  // Ends what runs or is being made, and gives back all memory. Takes most of a second.
  virtual void Abort() = 0;
  // The same when nothing runs, in good order with the peer if it does likewise.
  virtual void Destroy() = 0;
  // Whether everything that was ever posted has left the GPU. ERRORS: Unavailable: the GPU is lost.
  virtual absl::StatusOr<bool> Quiet() = 0;
};

// Of one GPU of this process.
class PairCommunicators {
 public:
  virtual ~PairCommunicators() = default;
  // The same number in two processes means the same GPU.
  virtual DeviceUuid device_uuid() const = 0;
  // Whether the library makes communicators of two ranks on one GPU. It refuses, but for versions
  // from 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1: slow (the two processes take turns on the GPU),
  // and right for trying the real thing where there is one GPU.
  virtual bool accepts_shared_device() const = 0;
  // Both ends must have the same.
  virtual uint32_t library_version() const = 0;
  // ERRORS: Unavailable.
  virtual absl::StatusOr<PairId> MintId() = 0;
  // Starts to make one end; Ready() says when both are there. `num_ctas`: thread blocks that move
  // bytes. ERRORS: Unavailable; ResourceExhausted: no memory on the GPU.
  virtual absl::StatusOr<std::unique_ptr<PairCommunicator>> Make(PairRole role, const PairId& id,
                                                                 int num_ctas) = 0;
};

// Memory of the GPU that a communicator takes. Measured (H200, NCCL 2.28): 71 MB at 4 thread
// blocks, 138 at 8, 273 at 16.
inline constexpr int64_t PairCommunicatorBytes(int num_ctas) {
  return (int64_t{17} * num_ctas + 4) << 20;
}

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_PAIR_COMMUNICATOR_H_
