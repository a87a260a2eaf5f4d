#include "kvtransfer/local/local_channel.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::kvtransfer {
namespace {

absl::Status CopyMatched(const LocalChannel::Operation& send,
                         const LocalChannel::Operation& receive) {
  if (send.sequence_number != receive.sequence_number) {
    return absl::DataLossError(absl::StrCat("local wire: sequence number ", send.sequence_number,
                                            " sent, ", receive.sequence_number, " posted"));
  }
  if (send.bytes.size() != receive.bytes.size()) {
    return absl::DataLossError(absl::StrCat("local wire: ", send.bytes.size(), " bytes sent, ",
                                            receive.bytes.size(), " posted"));
  }
  if (!send.bytes.empty()) {
    std::memcpy(receive.bytes.data(), send.bytes.data(), send.bytes.size());
  }
  return absl::OkStatus();
}

}  // namespace

void LocalChannel::Post(LocalSide which, Operation operation) {
  MutexLock lock(mutex_);
  Side& s = side(which);
  CHECK_LT(s.open, kWireOperationsMax);
  ++s.open;
  s.operations.push_back(std::move(operation));
}

void LocalChannel::Abort(LocalSide which, const absl::Status& reason) {
  const absl::Status own = absl::CancelledError(absl::StrCat("aborted: ", reason.message()));
  const absl::Status other = absl::UnavailableError("local wire: the peer is gone");
  MutexLock lock(mutex_);
  if (which == LocalSide::kSender) {
    Break(own, other);
  } else {
    Break(other, own);
  }
}

void LocalChannel::Break(const absl::Status& sender, const absl::Status& receiver) {
  Side& s = side(LocalSide::kSender);
  Side& r = side(LocalSide::kReceiver);
  if (s.broken.ok()) s.broken = sender;
  if (r.broken.ok()) r.broken = receiver;
}

bool LocalChannel::Quiescent(LocalSide which) const {
  MutexLock lock(mutex_);
  return side(which).open == 0;
}

void LocalChannel::AwaitQuiescence(LocalSide which) {
  MutexLock lock(mutex_);
  while (side(which).open > 0) completed_.WaitFor(mutex_, std::chrono::milliseconds(100));
}

bool LocalChannel::TakeFailed(LocalSide which, Operation* operation, absl::Status* status) {
  Side& s = side(which);
  if (s.operations.empty()) return false;
  if (s.broken.ok()) {
    const absl::Status& refusal = s.operations.front().refusal;
    if (refusal.ok()) return false;
    s.broken = refusal;
  }
  *operation = std::move(s.operations.front());
  s.operations.pop_front();
  *status = s.broken;
  return true;
}

void LocalChannel::Complete(LocalSide which, Operation operation, const absl::Status& status) {
  operation.done(status);
  operation.done = nullptr;  // Its captures go before quiescence is reported.
  {
    MutexLock lock(mutex_);
    --side(which).open;
  }
  completed_.SignalAll();
}

void LocalChannel::Move() {
  for (;;) {
    Operation send;
    Operation receive;
    absl::Status status;
    LocalSide failed = LocalSide::kSender;
    bool matched = false;
    {
      MutexLock lock(mutex_);
      if (TakeFailed(LocalSide::kSender, &send, &status)) {
      } else if (TakeFailed(LocalSide::kReceiver, &receive, &status)) {
        failed = LocalSide::kReceiver;
      } else if (side(LocalSide::kSender).operations.empty() ||
                 side(LocalSide::kReceiver).operations.empty()) {
        return;
      } else {
        matched = true;
        send = std::move(side(LocalSide::kSender).operations.front());
        receive = std::move(side(LocalSide::kReceiver).operations.front());
        side(LocalSide::kSender).operations.pop_front();
        side(LocalSide::kReceiver).operations.pop_front();
      }
    }
    if (!matched) {
      Complete(failed, std::move(failed == LocalSide::kSender ? send : receive), status);
      continue;
    }
    status = CopyMatched(send, receive);
    if (!status.ok()) {
      MutexLock lock(mutex_);
      Break(status, status);
    }
    Complete(LocalSide::kReceiver, std::move(receive), status);
    Complete(LocalSide::kSender, std::move(send), status);
  }
}

}  // namespace baton::kvtransfer
