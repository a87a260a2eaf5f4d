#include "kvtransfer/tcp/tcp_end.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {
namespace {

// Bytes of one socket call: an abort waits for at most one such call.
constexpr size_t kSocketCallBytesMax = size_t{1} << 20;
constexpr int kPollMs = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<WireEnd>> TcpEnd::Create(WireDirection direction, UniqueFd socket) {
  ASSIGN_OR_RETURN(WakeEvent wake, WakeEvent::Create());
  return std::unique_ptr<WireEnd>(
      std::make_unique<TcpEnd>(direction, std::move(socket), std::move(wake)));
}

TcpEnd::TcpEnd(WireDirection direction, UniqueFd socket, WakeEvent wake)
    : direction_(direction),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      operations_(direction),
      thread_([this] { Run(); }) {}

TcpEnd::~TcpEnd() {
  Abort(absl::CancelledError("wire end destroyed"));
  stopping_ = true;
  wake_.Signal();
  thread_.join();
}

void TcpEnd::PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                      Completion done) {
  operations_.PostSend(sequence_number, bytes, std::move(done));
  wake_.Signal();
}

void TcpEnd::PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes, Completion done) {
  operations_.PostReceive(sequence_number, bytes, std::move(done));
  wake_.Signal();
}

void TcpEnd::Abort(const absl::Status& reason) {
  Break(absl::CancelledError(absl::StrCat("aborted: ", reason.message())));
  wake_.Signal();
}

void TcpEnd::Break(const absl::Status& status) {
  // The peer learns of it, and no socket call of the thread moves bytes any more.
  if (operations_.Break(status)) shutdown(socket_.get(), SHUT_RDWR);
}

void TcpEnd::CompleteFront(const absl::Status& status) {
  header_moved_ = 0;
  payload_moved_ = 0;
  operations_.CompleteFront(status);
}

WireOperation* TcpEnd::Next() {
  while (WireOperation* front = operations_.At(0)) {
    absl::Status status = operations_.broken();
    if (status.ok() && front->refusal.ok()) return front;
    if (status.ok()) {
      status = front->refusal;
      Break(status);
    }
    CompleteFront(status);
  }
  return nullptr;
}

void TcpEnd::Run() {
  for (;;) {
    // Before the look at the queue: nothing is posted to an end that is being destroyed.
    const bool stopping = stopping_;
    WireOperation* operation = Next();
    if (operation == nullptr && stopping) return;
    bool blocked = false;
    if (operation != nullptr) {
      const Progress progress =
          direction_ == WireDirection::kSend ? Send(operation) : Receive(operation);
      if (progress == Progress::kCompleted) CompleteFront(absl::OkStatus());
      if (progress != Progress::kBlocked) continue;
      blocked = true;
    }
    AwaitWork(blocked, operation == nullptr);
  }
}

void TcpEnd::AwaitWork(bool blocked, bool idle) {
  pollfd fds[2] = {{wake_.fd(), POLLIN, 0}, {socket_.get(), 0, 0}};
  if (direction_ == WireDirection::kSend) {
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
  if (direction_ == WireDirection::kSend) {
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

TcpEnd::Progress TcpEnd::Send(WireOperation* operation) {
  if (header_moved_ == 0) {
    header_ = EncodeTcpFrameHeader({.sequence_number = operation->sequence_number,
                                    .length = static_cast<uint32_t>(operation->bytes.size()),
                                    .checksum = TcpPayloadChecksum(operation->bytes)});
  }
  while (header_moved_ < header_.size() || payload_moved_ < operation->bytes.size()) {
    if (broken()) return Progress::kBroken;
    const size_t payload_bytes =
        std::min(operation->bytes.size() - payload_moved_, kSocketCallBytesMax);
    iovec pieces[2] = {{header_.data() + header_moved_, header_.size() - header_moved_},
                       {operation->bytes.data() + payload_moved_, payload_bytes}};
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

absl::Status TcpEnd::CheckHeader(const WireOperation& operation) {
  ASSIGN_OR_RETURN(decoded_, DecodeTcpFrameHeader(header_));
  if (decoded_.sequence_number != operation.sequence_number) {
    return absl::DataLossError(absl::StrCat("tcp wire: sequence number ", decoded_.sequence_number,
                                            " sent, ", operation.sequence_number, " posted"));
  }
  if (decoded_.length != operation.bytes.size()) {
    return absl::DataLossError(absl::StrCat("tcp wire: ", decoded_.length, " bytes sent, ",
                                            operation.bytes.size(), " posted"));
  }
  return absl::OkStatus();
}

TcpEnd::Progress TcpEnd::Receive(WireOperation* operation) {
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
  while (payload_moved_ < operation->bytes.size()) {
    const Progress progress =
        ReceiveSome(operation->bytes.data() + payload_moved_,
                    operation->bytes.size() - payload_moved_, &payload_moved_);
    if (progress != Progress::kCompleted) return progress;
  }
  if (TcpPayloadChecksum(operation->bytes) != decoded_.checksum) {
    Break(absl::DataLossError(absl::StrCat("tcp wire: wrong checksum of the ",
                                           operation->bytes.size(), " bytes with sequence number ",
                                           operation->sequence_number)));
    return Progress::kBroken;
  }
  return Progress::kCompleted;
}

}  // namespace baton::kvtransfer
