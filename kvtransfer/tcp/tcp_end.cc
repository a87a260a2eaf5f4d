#include "kvtransfer/tcp/tcp_end.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {
namespace {

// Bytes of one socket call: an abort waits for at most one such call.
constexpr size_t kSocketCallBytesMax = size_t{1} << 20;
constexpr int kPollMs = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<WireEnd>> TcpEnd::Create(Direction direction, UniqueFd socket) {
  ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  return std::unique_ptr<WireEnd>(
      std::make_unique<TcpEnd>(direction, std::move(socket), std::move(wake)));
}

TcpEnd::TcpEnd(Direction direction, UniqueFd socket, WakeEvent wake)
    : direction_(direction),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      thread_([this] { Run(); }) {}

TcpEnd::~TcpEnd() {
  Abort(absl::CancelledError("wire end destroyed"));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.Signal();
  thread_.join();
}

void TcpEnd::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                      Completion done) {
  // Never written through when sending.
  std::byte* data = const_cast<std::byte*>(bytes.data());
  Post(Direction::kSend, {sequence_number, data, bytes.size(), std::move(done), {}});
}

void TcpEnd::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) {
  Post(Direction::kReceive, {sequence_number, bytes.data(), bytes.size(), std::move(done), {}});
}

void TcpEnd::Post(Direction direction, Operation operation) {
  CHECK_LE(operation.size, kWireOperationBytesMax);
  if (direction != direction_) {
    operation.refusal = absl::FailedPreconditionError(
        direction_ == Direction::kSend ? "the connecting end of a wire only sends"
                                       : "the accepting end of a wire only receives");
  }
  {
    MutexLock lock(mutex_);
    CHECK_LT(open_, kWireOperationsMax);
    ++open_;
    operations_.push_back(std::move(operation));
  }
  wake_.Signal();
}

void TcpEnd::Abort(const absl::Status& reason) {
  Break(absl::CancelledError(absl::StrCat("aborted: ", reason.message())));
  wake_.Signal();
}

void TcpEnd::Break(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = status;
  }
  // The peer learns of it, and no socket call of the thread moves bytes any more.
  shutdown(socket_.get(), SHUT_RDWR);
}

bool TcpEnd::broken() const {
  MutexLock lock(mutex_);
  return !broken_.ok();
}

bool TcpEnd::Quiescent() const {
  MutexLock lock(mutex_);
  return open_ == 0;
}

void TcpEnd::CompleteFront(const absl::Status& status) {
  Completion done;
  {
    MutexLock lock(mutex_);
    done = std::move(operations_.front().done);
    operations_.pop_front();
  }
  header_moved_ = 0;
  payload_moved_ = 0;
  done(status);
  done = nullptr;  // Its captures go before quiescence is reported.
  MutexLock lock(mutex_);
  --open_;
}

TcpEnd::Operation* TcpEnd::Next(bool* stop) {
  for (;;) {
    absl::Status status;
    absl::Status refusal;
    {
      MutexLock lock(mutex_);
      *stop = stopping_ && operations_.empty();
      if (operations_.empty()) return nullptr;
      refusal = operations_.front().refusal;
      status = broken_;
      // References into a deque stay valid while others push at its end.
      if (status.ok() && refusal.ok()) return &operations_.front();
    }
    if (status.ok()) {
      Break(refusal);
      status = refusal;
    }
    CompleteFront(status);
  }
}

void TcpEnd::Run() {
  for (;;) {
    bool stop = false;
    Operation* operation = Next(&stop);
    if (stop) return;
    bool blocked = false;
    if (operation != nullptr) {
      const Progress progress =
          direction_ == Direction::kSend ? Send(operation) : Receive(operation);
      if (progress == Progress::kCompleted) CompleteFront(absl::OkStatus());
      if (progress != Progress::kBlocked) continue;
      blocked = true;
    }
    AwaitWork(blocked, operation == nullptr);
  }
}

void TcpEnd::AwaitWork(bool blocked, bool idle) {
  pollfd fds[2] = {{wake_.fd(), POLLIN, 0}, {socket_.get(), 0, 0}};
  if (direction_ == Direction::kSend) {
    // D never speaks on this connection: whatever can be read is its end.
    fds[1].events = static_cast<short>(POLLIN | POLLRDHUP | (blocked ? POLLOUT : 0));
  } else if (!idle) {
    fds[1].events = POLLIN;
  } else if (!peer_closed_) {
    fds[1].events = POLLRDHUP;
  }
  if (broken()) fds[1].fd = -1;
  if (poll(fds, 2, kPollMs) <= 0) return;  // EINTR too: the caller looks again.
  if (fds[0].revents != 0) wake_.Drain();
  const short events = fds[1].revents;
  if (events == 0) return;
  if (direction_ == Direction::kSend) {
    if ((events & (POLLIN | POLLRDHUP | POLLERR | POLLHUP | POLLNVAL)) != 0) {
      Break(absl::UnavailableError("tcp wire: the peer closed the connection"));
    }
  } else if (idle) {
    // What the peer sent before it left can still be received by what is posted later.
    peer_closed_ = true;
    if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      Break(absl::UnavailableError("tcp wire: the connection is gone"));
    }
  }
}

TcpEnd::Progress TcpEnd::Send(Operation* operation) {
  if (header_moved_ == 0) {
    header_ =
        EncodeTcpFrameHeader({.sequence_number = operation->sequence_number,
                              .length = static_cast<uint32_t>(operation->size),
                              .checksum = TcpPayloadChecksum({operation->data, operation->size})});
  }
  while (header_moved_ < header_.size() || payload_moved_ < operation->size) {
    if (broken()) return Progress::kBroken;
    const size_t payload_bytes = std::min(operation->size - payload_moved_, kSocketCallBytesMax);
    iovec pieces[2] = {{header_.data() + header_moved_, header_.size() - header_moved_},
                       {operation->data + payload_moved_, payload_bytes}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Progress::kBlocked;
      Break(ErrnoStatus(absl::StatusCode::kUnavailable, "tcp wire: send", errno));
      return Progress::kBroken;
    }
    const size_t of_header = std::min<size_t>(n, header_.size() - header_moved_);
    header_moved_ += of_header;
    payload_moved_ += static_cast<size_t>(n) - of_header;
  }
  return Progress::kCompleted;
}

TcpEnd::Progress TcpEnd::ReceiveSome(std::byte* to, size_t size, size_t* received) {
  if (broken()) return Progress::kBroken;
  const ssize_t n = recv(socket_.get(), to, std::min(size, kSocketCallBytesMax), MSG_DONTWAIT);
  if (n > 0) {
    *received += static_cast<size_t>(n);
    return Progress::kCompleted;
  }
  if (n < 0 && errno == EINTR) return Progress::kCompleted;  // Nothing received: again.
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Progress::kBlocked;
  Break(n == 0 ? absl::UnavailableError("tcp wire: the peer closed the connection")
               : ErrnoStatus(absl::StatusCode::kUnavailable, "tcp wire: recv", errno));
  return Progress::kBroken;
}

absl::Status TcpEnd::CheckHeader(const Operation& operation) {
  ASSIGN_OR_RETURN(decoded_, DecodeTcpFrameHeader(header_));
  if (decoded_.sequence_number != operation.sequence_number) {
    return absl::DataLossError(absl::StrCat("tcp wire: sequence number ", decoded_.sequence_number,
                                            " sent, ", operation.sequence_number, " posted"));
  }
  if (decoded_.length != operation.size) {
    return absl::DataLossError(
        absl::StrCat("tcp wire: ", decoded_.length, " bytes sent, ", operation.size, " posted"));
  }
  return absl::OkStatus();
}

TcpEnd::Progress TcpEnd::Receive(Operation* operation) {
  while (header_moved_ < header_.size()) {
    const Progress progress =
        ReceiveSome(header_.data() + header_moved_, header_.size() - header_moved_, &header_moved_);
    if (progress != Progress::kCompleted) return progress;
    if (header_moved_ < header_.size()) continue;
    if (absl::Status s = CheckHeader(*operation); !s.ok()) {
      Break(s);
      return Progress::kBroken;
    }
  }
  while (payload_moved_ < operation->size) {
    const Progress progress = ReceiveSome(operation->data + payload_moved_,
                                          operation->size - payload_moved_, &payload_moved_);
    if (progress != Progress::kCompleted) return progress;
  }
  if (TcpPayloadChecksum({operation->data, operation->size}) != decoded_.checksum) {
    Break(absl::DataLossError(absl::StrCat("tcp wire: wrong checksum of the ", operation->size,
                                           " bytes with sequence number ",
                                           operation->sequence_number)));
    return Progress::kBroken;
  }
  return Progress::kCompleted;
}

}  // namespace baton::kvtransfer
