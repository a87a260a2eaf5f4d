// The state that the two ends of a local pair share. Matching, copying and completing happen on the
// mover thread only; posting and aborting on any. Thread-safe.
#ifndef BATON_KVTRANSFER_LOCAL_LOCAL_CHANNEL_H_
#define BATON_KVTRANSFER_LOCAL_LOCAL_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

enum class LocalSide { kSender, kReceiver };

class LocalChannel {
 public:
  struct Operation {
    uint64_t sequence_number = 0;
    absl::Span<std::byte> bytes;  // Read only for sends.
    WireEnd::Completion done;
    absl::Status refusal;  // Not OK: complete with this and touch nothing.
  };

  void Post(LocalSide side, Operation operation) EXCLUDES(mutex_);
  // `side` gives up: its operations end with Cancelled, the other side's with Unavailable.
  void Abort(LocalSide side, const absl::Status& reason) EXCLUDES(mutex_);
  bool Quiescent(LocalSide side) const EXCLUDES(mutex_);
  // Blocks until Quiescent(side); the mover brings it about.
  void AwaitQuiescence(LocalSide side) EXCLUDES(mutex_);

  // Copies and completes whatever can be. Called by the mover thread only.
  void Move() EXCLUDES(mutex_);

 private:
  struct Side {
    std::deque<Operation> operations;
    size_t open = 0;      // Posted and not completed yet, the running one included.
    absl::Status broken;  // What later operations of this side end with, once not OK.
  };

  Side& side(LocalSide which) REQUIRES(mutex_) { return sides_[static_cast<size_t>(which)]; }
  const Side& side(LocalSide which) const REQUIRES(mutex_) {
    return sides_[static_cast<size_t>(which)];
  }
  void Break(const absl::Status& sender, const absl::Status& receiver) REQUIRES(mutex_);
  // Takes the front operation of `which` if it must end without a copy.
  bool TakeFailed(LocalSide which, Operation* operation, absl::Status* status) REQUIRES(mutex_);
  void Complete(LocalSide which, Operation operation, const absl::Status& status) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  CondVar completed_;
  Side sides_[2] GUARDED_BY(mutex_);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LOCAL_LOCAL_CHANNEL_H_
