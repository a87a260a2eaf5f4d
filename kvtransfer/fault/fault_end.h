// One end of a pair with faults: a thread hands posted operations to the end below, late, changed
// or not at all. Thread-safe.
#ifndef BATON_KVTRANSFER_FAULT_FAULT_END_H_
#define BATON_KVTRANSFER_FAULT_FAULT_END_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "kvtransfer/fault/fault_wire.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

class FaultEnd : public WireEnd {
 public:
  FaultEnd(std::unique_ptr<WireEnd> inner, std::shared_ptr<FaultController> controller);
  ~FaultEnd() override;

  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override;
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) override;
  void Abort(const absl::Status& reason) override EXCLUDES(mutex_);
  bool Quiescent() const override EXCLUDES(mutex_);
  uint64_t piece_bytes_max() const override { return inner_->piece_bytes_max(); }

 private:
  struct Operation {
    bool is_send = false;
    uint64_t sequence_number = 0;
    absl::Span<std::byte> bytes;  // Read only for sends.
    Completion done;
    TimePoint posted_at{};
  };

  void Post(Operation operation) EXCLUDES(mutex_);
  void Run() EXCLUDES(mutex_);
  // Whether the front operation may be taken now; waits a little if not.
  bool MayTakeFront() REQUIRES(mutex_);
  void Apply(Operation operation) EXCLUDES(mutex_);
  void HandOver(Operation operation, std::optional<uint64_t> corrupt_at);
  void Break(const absl::Status& status) EXCLUDES(mutex_);
  // Completes an operation that the end below never saw, after all that it did see.
  void Fail(Operation operation) EXCLUDES(mutex_);
  void Completed() EXCLUDES(mutex_);

  const std::unique_ptr<WireEnd> inner_;
  const std::shared_ptr<FaultController> controller_;
  uint64_t moved_bytes_ = 0;  // Used by the thread only.

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Operation> operations_ GUARDED_BY(mutex_);
  size_t open_ GUARDED_BY(mutex_) = 0;
  absl::Status broken_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_FAULT_FAULT_END_H_
