// Our own accept loop in front of gRPC. gRPC 1.51 stops listening for ever when a process runs out
// of file descriptors once (accept4 fails with EMFILE); this one sheds the connection and goes on.
// It also knows why an address cannot be listened on, and never shares a port (no SO_REUSEPORT).
//
// Thread rule: thread-safe. Connections are handed over on the listener's own thread.
#ifndef BATON_COMMON_RPC_LISTENER_H_
#define BATON_COMMON_RPC_LISTENER_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/host_port.h"

namespace baton::rpc {

class Listener {
 public:
  // Binds and listens on a numeric address; port 0 takes a free one. Clients may connect from now
  // on and wait until Start. ERRORS: FailedPrecondition naming the address and the system's reason.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const HostPort& address);

  ~Listener();  // Stop().
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // With the real port.
  const HostPort& address() const { return address_; }
  int fd() const { return listen_fd_; }

  // `on_connection` owns the descriptor (non-blocking, close-on-exec, TCP_NODELAY) that it is given
  // and must not block. REQUIRES: called once.
  void Start(std::function<void(int fd)> on_connection);

  // Stops listening; connections that nobody took are reset. Returns when no callback runs any
  // more. Idempotent, but not to be called by two threads at a time.
  void Stop();

 private:
  Listener(HostPort address, int listen_fd, int stop_fd);
  void Run(const std::function<void(int fd)>& on_connection);
  // Accepts one connection and closes it, using the descriptor kept for that.
  void Shed();

  const HostPort address_;
  int listen_fd_;
  const int stop_fd_;  // An eventfd: readable once Stop has been called.
  int reserve_fd_;
  std::thread thread_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_LISTENER_H_
