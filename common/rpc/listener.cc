#include "common/rpc/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::rpc {
namespace {

constexpr int kBacklog = 1024;
// Pause when even shedding is not possible.
constexpr int kExhaustedPauseMs = 50;

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Fills `storage` and returns its size; 0 when the address is not numeric.
socklen_t ToSockaddr(const HostPort& address, sockaddr_storage* storage) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  if (inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    return sizeof(*v4);
  }
  if (inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    return sizeof(*v6);
  }
  return 0;
}

uint16_t PortOf(const sockaddr_storage& storage) {
  return ntohs(storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

bool OutOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const HostPort& address) {
  sockaddr_storage storage{};
  socklen_t size = ToSockaddr(address, &storage);
  CHECK(size > 0) << "not a numeric address: " << address.ToString();
  const auto failed = [&address](int fd) {
    const absl::Status status = absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", address.ToString(), ": ", std::strerror(errno)));
    if (fd >= 0) close(fd);
    return status;
  };
  const int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(fd);
  // A port in TIME_WAIT is free; one that somebody listens on is not.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, reinterpret_cast<sockaddr*>(&storage), size) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return failed(fd);
  }
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) return failed(fd);
  return std::unique_ptr<Listener>(new Listener(  // NOLINT(banned-new): private constructor
      HostPort{address.host, PortOf(storage)}, fd, stop_fd));
}

Listener::Listener(HostPort address, int listen_fd, int stop_fd)
    : address_(std::move(address)),
      listen_fd_(listen_fd),
      stop_fd_(stop_fd),
      reserve_fd_(OpenReserve()) {}

Listener::~Listener() {
  Stop();
  close(stop_fd_);
  if (reserve_fd_ >= 0) close(reserve_fd_);
}

void Listener::Start(std::function<void(int fd)> on_connection) {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this, on_connection = std::move(on_connection)] { Run(on_connection); });
}

void Listener::Stop() {
  if (listen_fd_ < 0) return;
  const uint64_t one = 1;
  const ssize_t written = write(stop_fd_, &one, sizeof(one));
  CHECK_EQ(written, static_cast<ssize_t>(sizeof(one)));
  if (thread_.joinable()) thread_.join();
  close(listen_fd_);
  listen_fd_ = -1;
}

void Listener::Shed() {
  if (reserve_fd_ >= 0) close(reserve_fd_);
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) close(fd);
  reserve_fd_ = OpenReserve();
}

void Listener::Run(const std::function<void(int fd)>& on_connection) {
  bool exhausted = false;  // So that a flood logs one line, not one a connection.
  for (;;) {
    pollfd waiting[2] = {{listen_fd_, POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    // No time-out: Stop makes stop_fd_ readable.
    poll(waiting, 2, -1);
    if (waiting[1].revents != 0) return;
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      exhausted = false;
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      on_connection(fd);
      continue;
    }
    if (!OutOfResources(errno)) continue;  // The client has gone, or a signal came.
    if (!exhausted) {
      LogError("cannot accept a connection: shedding until there is room",
               {{"listen", address_.ToString()}, {"reason", std::strerror(errno)}});
    }
    exhausted = true;
    if (reserve_fd_ >= 0) {
      Shed();
    } else {
      reserve_fd_ = OpenReserve();
      poll(&waiting[1], 1, kExhaustedPauseMs);
    }
  }
}

}  // namespace baton::rpc
