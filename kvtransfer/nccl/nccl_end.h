// One end of an NCCL pair once it is open: its posting thread (Run), which alone talks to the
// communicator and to the TCP connection beside it, and alone calls completions.
//
// An operation is launched only when both sides have posted their half: D announces its receives
// over the connection; P compares, launches its send and announces it; D compares and launches its
// receive. So a receive never spins on the GPU for a send that may not come, nor a send for a
// receive that was not posted; what can still happen is that the peer dies or aborts in between.
// NCCL reports neither; the closed connection does, or the transfer's own deadlines and heartbeats.
//
// Aborting: completions of operations that were launched wait until the communicator is aborted and
// the stream's last event has fired; until then their memory is in quarantine. Without any, the end
// is quiescent at once, and the communicator goes behind it. Thread-safe.
#ifndef BATON_KVTRANSFER_NCCL_NCCL_END_H_
#define BATON_KVTRANSFER_NCCL_NCCL_END_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/nccl/owned_communicator.h"
#include "kvtransfer/nccl/pair_frames.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

// What a NcclEnd and its thread share.
class NcclEndCore {
 public:
  struct Operation {
    uint64_t sequence_number = 0;
    absl::Span<std::byte> bytes;  // Read only when sending.
    WireEnd::Completion done;
    absl::Status refusal;
    // Once launched: it has ended when the communicator has completed so many operations.
    uint64_t ends_at = 0;
  };

  NcclEndCore(PairRole role, UniqueFd socket, WakeEvent wake,
              std::unique_ptr<OwnedCommunicator> communicator);

  void Post(PairRole direction, Operation operation) EXCLUDES(mutex_);
  void Abort(const absl::Status& reason) EXCLUDES(mutex_);
  bool Quiescent() const EXCLUDES(mutex_);
  // The end is destroyed: aborts, waits until it is quiescent and lets Run return.
  void Release() EXCLUDES(mutex_);
  // The posting thread. Returns when the end was released and its communicator is gone.
  void Run() EXCLUDES(mutex_);

 private:
  // True when Run may return.
  bool ServeBroken(const absl::Status& status) EXCLUDES(mutex_);
  void ServeOpen() EXCLUDES(mutex_);
  // Null: none. Pointers stay valid while others push at the end of the queue.
  Operation* OperationAt(size_t index) EXCLUDES(mutex_);
  void AnnounceReceives() EXCLUDES(mutex_);
  void LaunchMatched() EXCLUDES(mutex_);
  // False: not now, or broken.
  bool Launch(Operation* operation, const PairFrame& peer) EXCLUDES(mutex_);
  void CompleteEnded() EXCLUDES(mutex_);
  void CompleteFront(const absl::Status& status) EXCLUDES(mutex_);
  void ReadFrames() EXCLUDES(mutex_);
  void TakeFrames() EXCLUDES(mutex_);
  void QueueFrame(PairFrame::Kind kind, const Operation& operation);
  void FlushFrames() EXCLUDES(mutex_);
  void Await() EXCLUDES(mutex_);
  void Break(const absl::Status& status) EXCLUDES(mutex_);
  absl::Status broken() const EXCLUDES(mutex_);

  const PairRole role_;
  const UniqueFd socket_;
  const WakeEvent wake_;

  // Used by Run's thread only.
  std::unique_ptr<OwnedCommunicator> communicator_;  // Null once it has ended and is quiet.
  std::deque<PairFrame> peer_;  // What the peer has posted and we have not launched.
  std::vector<std::byte> in_;   // Bytes of frames.
  std::vector<std::byte> out_;  // Not taken by the socket yet.
  size_t announced_ = 0;        // Operations at the front of the queue; D only.
  size_t launched_ = 0;         // Likewise.
  uint64_t posted_ = 0;         // To the communicator, ever.
  bool peer_left_ = false;
  bool failed_ = false;  // The communicator.
  TimePoint busy_since_{};

  mutable Mutex mutex_;
  CondVar quiescent_;
  std::deque<Operation> operations_ GUARDED_BY(mutex_);
  size_t open_ GUARDED_BY(mutex_) = 0;
  absl::Status broken_ GUARDED_BY(mutex_);
  bool released_ GUARDED_BY(mutex_) = false;
};

class NcclEnd : public WireEnd {
 public:
  explicit NcclEnd(std::shared_ptr<NcclEndCore> core) : core_(std::move(core)) {}
  ~NcclEnd() override { core_->Release(); }

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override { core_->Abort(reason); }
  bool Quiescent() const override { return core_->Quiescent(); }

 private:
  const std::shared_ptr<NcclEndCore> core_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_END_H_
