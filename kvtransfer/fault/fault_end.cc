#include "kvtransfer/fault/fault_end.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::kvtransfer {

FaultEnd::FaultEnd(std::unique_ptr<WireEnd> inner, std::shared_ptr<FaultController> controller)
    : inner_(std::move(inner)), controller_(std::move(controller)), thread_([this] { Run(); }) {}

FaultEnd::~FaultEnd() {
  Abort(absl::CancelledError("wire end destroyed"));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  thread_.join();
  MutexLock lock(mutex_);
  while (open_ > 0) changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
}

void FaultEnd::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                        Completion done) {
  // Never written through when sending.
  absl::Span<std::byte> span(const_cast<std::byte*>(bytes.data()), bytes.size());
  Post({true, sequence_number, span, std::move(done), Clock::Real()->Now()});
}

void FaultEnd::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) {
  Post({false, sequence_number, bytes, std::move(done), Clock::Real()->Now()});
}

void FaultEnd::Post(Operation operation) {
  {
    MutexLock lock(mutex_);
    CHECK_LT(open_, kWireOperationsMax);
    ++open_;
    operations_.push_back(std::move(operation));
  }
  changed_.Signal();
}

void FaultEnd::Abort(const absl::Status& reason) {
  Break(absl::CancelledError(absl::StrCat("aborted: ", reason.message())));
}

void FaultEnd::Break(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = status;
  }
  inner_->Abort(status);
  changed_.Signal();
}

bool FaultEnd::Quiescent() const {
  if (controller_->policy().hide_quiescence) return false;
  MutexLock lock(mutex_);
  return open_ == 0;
}

void FaultEnd::Completed() {
  // Signalled under the lock: the destructor, which waits for this, must not overtake it.
  MutexLock lock(mutex_);
  --open_;
  changed_.Signal();
}

bool FaultEnd::MayTakeFront() {
  if (operations_.empty()) {
    changed_.WaitFor(mutex_, std::chrono::seconds(1));
    return false;
  }
  if (!broken_.ok()) return true;
  const FaultPolicy policy = controller_->policy();
  const Duration left = operations_.front().posted_at + policy.delay - Clock::Real()->Now();
  if (!policy.stall && left <= Duration::zero()) return true;
  // Short, because a stall may be lifted without a signal.
  changed_.WaitFor(mutex_, policy.stall ? Duration(std::chrono::milliseconds(2)) : left);
  return false;
}

void FaultEnd::Run() {
  for (;;) {
    Operation operation;
    bool broken = false;
    {
      MutexLock lock(mutex_);
      if (stopping_ && operations_.empty()) return;
      if (!MayTakeFront()) continue;
      operation = std::move(operations_.front());
      operations_.pop_front();
      broken = !broken_.ok();
    }
    if (broken) {
      Fail(std::move(operation));
    } else {
      Apply(std::move(operation));
    }
  }
}

void FaultEnd::Apply(Operation operation) {
  const FaultPolicy policy = controller_->policy();
  const uint64_t from = moved_bytes_;
  moved_bytes_ += operation.bytes.size();
  absl::Status fault;
  if (controller_->FailThisOperation()) {
    fault = absl::UnavailableError("fault wire: this operation fails");
  } else if (policy.cut_after_bytes.has_value() && moved_bytes_ > *policy.cut_after_bytes) {
    fault = absl::UnavailableError("fault wire: the connection is cut");
  }
  if (!fault.ok()) {
    Break(fault);
    Fail(std::move(operation));
    return;
  }
  std::optional<uint64_t> corrupt_at;
  if (policy.corrupt_after_bytes.has_value() && *policy.corrupt_after_bytes >= from &&
      *policy.corrupt_after_bytes < moved_bytes_) {
    corrupt_at = *policy.corrupt_after_bytes - from;
  }
  HandOver(std::move(operation), corrupt_at);
}

void FaultEnd::HandOver(Operation operation, std::optional<uint64_t> corrupt_at) {
  if (operation.is_send) {
    inner_->PostSend(operation.sequence_number, operation.bytes,
                     [this, done = std::move(operation.done)](const absl::Status& status) {
                       done(status);
                       Completed();
                     });
    return;
  }
  const auto bit = static_cast<std::byte>(1u << (controller_->Random() % 8));
  inner_->PostReceive(operation.sequence_number, operation.bytes,
                      [this, bit, corrupt_at, bytes = operation.bytes,
                       done = std::move(operation.done)](const absl::Status& status) {
                        if (status.ok() && corrupt_at.has_value()) bytes[*corrupt_at] ^= bit;
                        done(status);
                        Completed();
                      });
}

void FaultEnd::Fail(Operation operation) {
  // The end below was aborted, so this ends soon.
  absl::Status status;
  {
    MutexLock lock(mutex_);
    while (!inner_->Quiescent()) changed_.WaitFor(mutex_, std::chrono::milliseconds(1));
    status = broken_;
  }
  operation.done(status);
  operation.done = nullptr;
  Completed();
}

}  // namespace baton::kvtransfer
