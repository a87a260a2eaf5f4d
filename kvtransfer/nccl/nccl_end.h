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

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "kvtransfer/nccl/owned_communicator.h"
#include "kvtransfer/nccl/pair_frames.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"
#include "kvtransfer/wire_operations.h"

namespace baton::kvtransfer {

// What a NcclEnd and its thread share.
class NcclEndCore {
 public:
  NcclEndCore(PairRole role, UniqueFd socket, WakeEvent wake,
              std::unique_ptr<OwnedCommunicator> communicator);

  WireOperations& operations() { return operations_; }
  void Wake() { wake_.Signal(); }
  void Abort(const absl::Status& reason);
  // The end is destroyed: aborts, waits until it is quiescent and lets Run return.
  void Release();
  // The posting thread. Returns when the end was released and its communicator is gone.
  void Run();

 private:
  // True when Run may return.
  bool ServeBroken(const absl::Status& status);
  void ServeOpen();
  void AnnounceReceives();
  void LaunchMatched();
  // False: not now, or broken.
  bool Launch(const WireOperation& operation, const PairFrame& peer);
  void CompleteEnded();
  void CompleteFront(const absl::Status& status);
  void ReadFrames();
  void TakeFrames();
  void QueueFrame(PairFrame::Kind kind, const WireOperation& operation);
  void FlushFrames();
  void Await();
  void Break(const absl::Status& status) { operations_.Break(status); }

  const PairRole role_;
  const UniqueFd socket_;
  const WakeEvent wake_;

  // Used by Run's thread only.
  std::unique_ptr<OwnedCommunicator> communicator_;  // Null once it has ended and is quiet.
  std::deque<PairFrame> peer_;  // What the peer has posted and we have not launched.
  std::vector<std::byte> in_;   // Bytes of frames.
  std::vector<std::byte> out_;  // Not taken by the socket yet.
  size_t announced_ = 0;        // Operations at the front of the queue; D only.
  // Of each operation at the front that was launched: it has ended when the communicator has
  // completed so many.
  std::deque<uint64_t> ends_at_;
  uint64_t posted_ = 0;  // To the communicator, ever.
  bool peer_left_ = false;
  bool failed_ = false;  // The communicator.
  TimePoint busy_since_{};

  WireOperations operations_;
  std::atomic<bool> released_{false};
};

class NcclEnd : public WireEnd {
 public:
  explicit NcclEnd(std::shared_ptr<NcclEndCore> core) : core_(std::move(core)) {}
  ~NcclEnd() override { core_->Release(); }

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override { core_->Abort(reason); }
  bool Quiescent() const override { return core_->operations().Quiescent(); }

 private:
  const std::shared_ptr<NcclEndCore> core_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_NCCL_END_H_
