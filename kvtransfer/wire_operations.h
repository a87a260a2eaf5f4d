// What has been posted to one end of a wire and is not complete: a queue that anybody adds to and
// one thread, the end's, serves from the front. With it the end's first error, after which nothing
// of the queue moves any more, and its quiescence: every completion has returned and its captures
// are gone.
//
// Thread-safe, but for At and CompleteFront: the serving thread only.
#ifndef BATON_KVTRANSFER_WIRE_OPERATIONS_H_
#define BATON_KVTRANSFER_WIRE_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

enum class WireDirection { kSend, kReceive };

struct WireOperation {
  uint64_t sequence_number = 0;
  absl::Span<std::byte> bytes;  // Read only when sending.
  WireEnd::Completion done;
  // Of an operation that the end cannot do: it breaks the end when it comes to the front.
  absl::Status refusal;
};

class WireOperations {
 public:
  // An end does one direction; the other is refused.
  explicit WireOperations(WireDirection direction) : direction_(direction) {}

  // As WireEnd has them. The caller wakes the serving thread.
  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                WireEnd::Completion done);
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, WireEnd::Completion done);

  // The operation at `index` from the front; null: none. Valid until it is completed.
  WireOperation* At(size_t index) EXCLUDES(mutex_);
  // Takes the front operation from the queue and calls its completion. REQUIRES: there is one, and
  // `status` is not its own refusal but a copy.
  void CompleteFront(const absl::Status& status) EXCLUDES(mutex_);

  // The first error stays; false: it was not this one. REQUIRES: not OK.
  bool Break(const absl::Status& status) EXCLUDES(mutex_);
  absl::Status broken() const EXCLUDES(mutex_);

  bool Quiescent() const EXCLUDES(mutex_);
  void AwaitQuiescence() EXCLUDES(mutex_);

 private:
  void Post(WireDirection direction, WireOperation operation) EXCLUDES(mutex_);

  const WireDirection direction_;
  mutable Mutex mutex_;
  CondVar quiescent_;
  std::deque<WireOperation> queue_ GUARDED_BY(mutex_);
  size_t open_ GUARDED_BY(mutex_) = 0;  // Posted, and completion not over.
  absl::Status broken_ GUARDED_BY(mutex_);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_OPERATIONS_H_
