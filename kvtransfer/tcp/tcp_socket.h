// File descriptors and sockets as the TCP wire needs them: owned, close-on-exec, non-blocking,
// every wait with a deadline. Functions are thread-safe; a UniqueFd has one owner.
#ifndef BATON_KVTRANSFER_TCP_TCP_SOCKET_H_
#define BATON_KVTRANSFER_TCP_TCP_SOCKET_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"

namespace baton::kvtransfer {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Wakes a thread that polls `fd()`. Thread-safe.
class WakeEvent {
 public:
  // ERRORS: ResourceExhausted: no file descriptor.
  static absl::StatusOr<WakeEvent> Create();
  void Signal() const;
  void Drain() const;
  int fd() const { return fd_.get(); }

 private:
  explicit WakeEvent(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

struct ListeningSocket {
  UniqueFd fd;
  HostPort address;  // With the real port.
};

// Binds to `address` (numeric) only. ERRORS: FailedPrecondition naming the address and the reason.
absl::StatusOr<ListeningSocket> ListenTcp(const HostPort& address);

// ERRORS: InvalidArgument: not numeric; Unavailable: refused or unreachable; DeadlineExceeded.
absl::StatusOr<UniqueFd> ConnectTcp(const HostPort& address, TimePoint deadline);

// TCP_NODELAY and keepalive on an accepted or connected socket.
void SetTcpOptions(int fd);

// All of `bytes`, or an error: Unavailable (closed, reset) or DeadlineExceeded.
absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, TimePoint deadline);
absl::Status ReadAll(int fd, absl::Span<std::byte> bytes, TimePoint deadline);

// poll() on one descriptor; Unavailable on failure, DeadlineExceeded when nothing came.
absl::Status AwaitEvents(int fd, short events, TimePoint deadline);

// "what: reason of errno".
absl::Status ErrnoStatus(absl::StatusCode code, const char* what, int error);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_SOCKET_H_
