#include "kvtransfer/wire_operations.h"

#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {
namespace {

constexpr Duration kNap = std::chrono::seconds(1);

}  // namespace

void WireOperations::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                              WireEnd::Completion done) {
  // Never written through when sending.
  const absl::Span<std::byte> span(const_cast<std::byte*>(bytes.data()), bytes.size());
  Post(WireDirection::kSend, {sequence_number, span, std::move(done), {}});
}

void WireOperations::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes,
                                 WireEnd::Completion done) {
  Post(WireDirection::kReceive, {sequence_number, bytes, std::move(done), {}});
}

void WireOperations::Post(WireDirection direction, WireOperation operation) {
  CHECK_LE(operation.bytes.size(), kWireOperationBytesMax);
  if (direction != direction_) {
    operation.refusal = absl::FailedPreconditionError(
        direction_ == WireDirection::kSend ? "the connecting end of a wire only sends"
                                           : "the accepting end of a wire only receives");
  }
  MutexLock lock(mutex_);
  CHECK_LT(open_, kWireOperationsMax);
  ++open_;
  queue_.push_back(std::move(operation));
}

WireOperation* WireOperations::At(size_t index) {
  MutexLock lock(mutex_);
  // Pointers into a deque stay valid while others push at its end.
  return index < queue_.size() ? &queue_[index] : nullptr;
}

void WireOperations::CompleteFront(const absl::Status& status) {
  WireEnd::Completion done;
  {
    MutexLock lock(mutex_);
    done = std::move(queue_.front().done);
    queue_.pop_front();
  }
  done(OwnCopy(status));
  done = nullptr;  // Its captures go before quiescence is reported.
  MutexLock lock(mutex_);
  --open_;
  if (open_ == 0) quiescent_.SignalAll();
}

bool WireOperations::Break(const absl::Status& status) {
  CHECK(!status.ok());
  MutexLock lock(mutex_);
  if (!broken_.ok()) return false;
  broken_ = status;
  return true;
}

absl::Status WireOperations::broken() const {
  MutexLock lock(mutex_);
  return broken_;
}

bool WireOperations::Quiescent() const {
  MutexLock lock(mutex_);
  return open_ == 0;
}

void WireOperations::AwaitQuiescence() {
  MutexLock lock(mutex_);
  while (open_ > 0) quiescent_.WaitFor(mutex_, kNap);
}

}  // namespace baton::kvtransfer
