#include "kvtransfer/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::kvtransfer {
namespace {

// A numeric address for the socket calls. False: `host` is not numeric.
bool ToSockaddr(const HostPort& address, sockaddr_storage* storage, socklen_t* size) {
  std::memset(storage, 0, sizeof(*storage));
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    *size = sizeof(*v4);
    return true;
  }
  if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    *size = sizeof(*v6);
    return true;
  }
  return false;
}

int RemainingMs(TimePoint deadline) {
  const Duration left = deadline - Clock::Real()->Now();
  if (left <= Duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<int64_t>(ms, 1000));
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::Status ErrnoStatus(absl::StatusCode code, const char* what, int error) {
  return absl::Status(code, absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<WakeEvent> WakeEvent::Create() {
  UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(absl::StatusCode::kResourceExhausted, "eventfd", errno);
  return WakeEvent(std::move(fd));
}

void WakeEvent::Signal() const {
  const uint64_t one = 1;
  // EAGAIN means that the counter is full: the thread is woken anyway.
  while (write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void WakeEvent::Drain() const {
  uint64_t count;
  while (read(fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<ListeningSocket> ListenTcp(const HostPort& address) {
  sockaddr_storage storage;
  socklen_t size;
  if (!ToSockaddr(address, &storage, &size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address.host, "' is not a numeric address to listen on"));
  }
  const auto failed = [&](const char* call) {
    return absl::FailedPreconditionError(absl::StrCat("listening for KV on ", address.ToString(),
                                                      ": ", call, ": ", std::strerror(errno)));
  };
  UniqueFd fd(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return failed("socket");
  const int on = 1;
  // A restarted worker gets its port back at once. SO_REUSEPORT stays off: two workers on one port
  // would steal each other's peers.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (storage.ss_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) != 0) return failed("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) return failed("listen");
  sockaddr_storage bound;
  socklen_t bound_size = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &bound_size) != 0) {
    return failed("getsockname");
  }
  const uint16_t port = bound.ss_family == AF_INET
                            ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                            : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port;
  return ListeningSocket{std::move(fd), {address.host, ntohs(port)}};
}

absl::Status AwaitEvents(int fd, short events, TimePoint deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int n = poll(&p, 1, RemainingMs(deadline));
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) {
      return ErrnoStatus(absl::StatusCode::kUnavailable, "poll", errno);
    }
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError("tcp wire: the peer did not answer in time");
    }
  }
}

absl::StatusOr<UniqueFd> ConnectTcp(const HostPort& address, TimePoint deadline) {
  sockaddr_storage storage;
  socklen_t size;
  if (!ToSockaddr(address, &storage, &size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp wire: '", address.host, "' is not a numeric address"));
  }
  UniqueFd fd(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(absl::StatusCode::kResourceExhausted, "socket", errno);
  SetTcpOptions(fd.get());
  int error = 0;
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    // An interrupted connect goes on in the background, like one in progress.
    if (errno != EINPROGRESS && errno != EINTR) {
      error = errno;
    } else {
      if (absl::Status s = AwaitEvents(fd.get(), POLLOUT, deadline); !s.ok()) return s;
      socklen_t error_size = sizeof(error);
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &error_size);
    }
  }
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("tcp wire: connecting to ", address.ToString(), ": ", std::strerror(error)));
  }
  return fd;
}

void SetTcpOptions(int fd) {
  const int on = 1;
  const int idle_s = 10, interval_s = 5, count = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // Heartbeats decide death; keepalive only frees sockets of machines that vanished.
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (absl::Status s = AwaitEvents(fd, POLLOUT, deadline); !s.ok()) return s;
    } else if (errno != EINTR) {
      return ErrnoStatus(absl::StatusCode::kUnavailable, "tcp wire: send", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, absl::Span<std::byte> bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0) {
      return absl::UnavailableError("tcp wire: the peer closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (absl::Status s = AwaitEvents(fd, POLLIN, deadline); !s.ok()) return s;
    } else if (errno != EINTR) {
      return ErrnoStatus(absl::StatusCode::kUnavailable, "tcp wire: recv", errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kvtransfer
