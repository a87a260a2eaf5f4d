#include "kvtransfer/nccl/nccl_end.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::kvtransfer {
namespace {

constexpr size_t kFrameBytes = sizeof(PairFrameBytes);
// While something runs on the GPU its end is asked for without rest for so long, which is all
// chunks but those that wait behind a long kernel, and then after naps. A nap of 50 us takes 100
// and more, as long as a chunk does on NVLink; with naps after 200 us, a chunk of 32 MiB took 0.31
// ms where the library alone takes 0.13 (8 thread blocks).
constexpr Duration kSpinLimit = std::chrono::milliseconds(2);
constexpr Duration kBusyNap = std::chrono::microseconds(50);
// Until an aborted communicator is quiet.
constexpr Duration kEndingNap = std::chrono::milliseconds(1);
constexpr Duration kIdleNap = std::chrono::seconds(1);

}  // namespace

void NcclEnd::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                       Completion done) {
  core_->operations().PostSend(sequence_number, bytes, std::move(done));
  core_->Wake();
}

void NcclEnd::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) {
  core_->operations().PostReceive(sequence_number, bytes, std::move(done));
  core_->Wake();
}

NcclEndCore::NcclEndCore(PairRole role, UniqueFd socket, WakeEvent wake,
                         std::unique_ptr<OwnedCommunicator> communicator)
    : role_(role),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      communicator_(std::move(communicator)),
      operations_(role == PairRole::kSender ? WireDirection::kSend : WireDirection::kReceive) {}

void NcclEndCore::Abort(const absl::Status& reason) {
  Break(absl::CancelledError(absl::StrCat("aborted: ", reason.message())));
  wake_.Signal();
}

void NcclEndCore::Release() {
  Abort(absl::CancelledError("wire end destroyed"));
  operations_.AwaitQuiescence();
  released_ = true;
  wake_.Signal();
}

void NcclEndCore::CompleteFront(const absl::Status& status) {
  if (announced_ > 0) --announced_;
  if (!ends_at_.empty()) ends_at_.pop_front();
  operations_.CompleteFront(status);
}

void NcclEndCore::Run() {
  for (;;) {
    const absl::Status status = operations_.broken();
    if (status.ok()) {
      ServeOpen();
    } else if (ServeBroken(status)) {
      break;
    }
    Await();
  }
}

bool NcclEndCore::ServeBroken(const absl::Status& status) {
  if (communicator_ != nullptr && !communicator_->ending()) {
    // The peer learns of it; what was said before still arrives.
    shutdown(socket_.get(), SHUT_WR);
    communicator_->BeginEnd(/*orderly=*/ends_at_.empty() && !failed_, [this] { wake_.Signal(); });
  }
  // Its place is another pair's as soon as nothing of it runs, however long the end is kept.
  // On a lost GPU nothing proves it; then an end without anything launched does not need it.
  if (communicator_ != nullptr &&
      (communicator_->Quiet() || (communicator_->lost() && ends_at_.empty()))) {
    communicator_.reset();
  }
  if (ends_at_.empty() || communicator_ == nullptr) {
    while (operations_.At(0) != nullptr) CompleteFront(status);
  }
  if (communicator_ != nullptr) return false;
  return released_ && operations_.At(0) == nullptr;
}

void NcclEndCore::ServeOpen() {
  ReadFrames();
  TakeFrames();
  if (role_ == PairRole::kReceiver) AnnounceReceives();
  LaunchMatched();
  FlushFrames();
  CompleteEnded();
  // Last, so that what the peer said before it left is judged first.
  if (peer_left_) Break(absl::UnavailableError("nccl wire: the peer closed the connection"));
}

void NcclEndCore::AnnounceReceives() {
  while (const WireOperation* operation = operations_.At(announced_)) {
    if (!operation->refusal.ok()) return;
    QueueFrame(PairFrame::Kind::kReceivePosted, *operation);
    ++announced_;
    busy_since_ = Clock::Real()->Now();
  }
}

void NcclEndCore::LaunchMatched() {
  while (const WireOperation* operation = operations_.At(ends_at_.size())) {
    if (!operation->refusal.ok()) {
      if (ends_at_.empty()) Break(operation->refusal);
      return;
    }
    if (peer_.empty() || !Launch(*operation, peer_.front())) return;
    peer_.pop_front();
    ends_at_.push_back(posted_);
    busy_since_ = Clock::Real()->Now();
  }
}

bool NcclEndCore::Launch(const WireOperation& operation, const PairFrame& peer) {
  const bool sends = role_ == PairRole::kSender;
  if (peer.sequence_number != operation.sequence_number || peer.length != operation.bytes.size()) {
    if (!ends_at_.empty()) return false;  // What fits ends first.
    // So that the other side sees the difference too.
    if (sends) QueueFrame(PairFrame::Kind::kSendPosted, operation);
    FlushFrames();
    Break(absl::DataLossError(absl::StrCat("nccl wire: ", operation.bytes.size(),
                                           " bytes with sequence number ",
                                           operation.sequence_number, " posted, ", peer.length,
                                           " with ", peer.sequence_number, " by the peer")));
    return false;
  }
  if (!operation.bytes.empty()) {
    const absl::StatusOr<bool> ready = (*communicator_)->Ready();
    absl::Status status = ready.status();
    if (ready.ok() && !*ready) return false;
    if (ready.ok()) status = (*communicator_)->Post(operation.bytes);
    if (!status.ok()) {
      failed_ = true;
      Break(status);
      return false;
    }
    ++posted_;
  }
  // After the launch: whoever hears of a send may rely on it.
  if (sends) QueueFrame(PairFrame::Kind::kSendPosted, operation);
  return true;
}

void NcclEndCore::CompleteEnded() {
  if (ends_at_.empty()) return;
  const absl::StatusOr<uint64_t> completed = (*communicator_)->Completed();
  if (!completed.ok()) {
    failed_ = true;
    Break(completed.status());
    return;
  }
  while (!ends_at_.empty() && ends_at_.front() <= *completed) {
    CompleteFront(absl::OkStatus());
    busy_since_ = Clock::Real()->Now();
  }
}

void NcclEndCore::ReadFrames() {
  constexpr size_t kReadBytes = 64 * kFrameBytes;
  while (!peer_left_ && in_.size() < kWireOperationsMax * kFrameBytes) {
    const size_t before = in_.size();
    in_.resize(before + kReadBytes);
    const ssize_t n = recv(socket_.get(), in_.data() + before, kReadBytes, MSG_DONTWAIT);
    in_.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    peer_left_ = true;
  }
}

void NcclEndCore::TakeFrames() {
  const auto expected =
      role_ == PairRole::kSender ? PairFrame::Kind::kReceivePosted : PairFrame::Kind::kSendPosted;
  size_t taken = 0;
  for (; in_.size() - taken >= kFrameBytes; taken += kFrameBytes) {
    PairFrameBytes bytes;
    std::copy_n(in_.begin() + static_cast<ptrdiff_t>(taken), kFrameBytes, bytes.begin());
    const absl::StatusOr<PairFrame> frame = DecodePairFrame(bytes);
    if (!frame.ok()) return Break(frame.status());
    if (frame->kind != expected || peer_.size() >= kWireOperationsMax) {
      return Break(absl::DataLossError("nccl wire: the peer announces what it may not"));
    }
    peer_.push_back(*frame);
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(taken));
}

void NcclEndCore::QueueFrame(PairFrame::Kind kind, const WireOperation& operation) {
  const PairFrameBytes bytes = EncodePairFrame({.kind = kind,
                                                .sequence_number = operation.sequence_number,
                                                .length = operation.bytes.size()});
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void NcclEndCore::FlushFrames() {
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t n =
        send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      peer_left_ = true;
      sent = out_.size();
    }
  }
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(sent));
}

void NcclEndCore::Await() {
  const bool open = operations_.broken().ok();
  Duration nap = kIdleNap;
  if (!open) {
    nap = communicator_ == nullptr ? kIdleNap : kEndingNap;
  } else if (operations_.At(0) != nullptr) {
    // Also while only the peer's half is missing, which mostly comes at once; later its frame
    // wakes.
    const bool polls = !ends_at_.empty() || !peer_.empty();
    if (polls) nap = kBusyNap;
    if (Clock::Real()->Now() - busy_since_ < kSpinLimit) nap = Duration::zero();
  }
  pollfd fds[2] = {{wake_.fd(), POLLIN, 0}, {open ? socket_.get() : -1, POLLIN, 0}};
  if (!out_.empty()) fds[1].events |= POLLOUT;
  const timespec timeout{.tv_sec = nap / std::chrono::seconds(1),
                         .tv_nsec = (nap % std::chrono::seconds(1)).count()};
  if (ppoll(fds, 2, &timeout, nullptr) <= 0) return;  // EINTR too: the caller looks again.
  if (fds[0].revents != 0) wake_.Drain();
}

}  // namespace baton::kvtransfer
