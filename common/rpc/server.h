// The gRPC server that every role starts: one listening address, health, reflection, limits and
// keepalive set once. It knows nothing of what the services do.
//
// Health names (grpc.health.v1): "" and "liveness" are SERVING from Start to the end; "readiness"
// and every service's full name follow SetReady (at first not ready). Liveness never depends on
// load or on other processes.
//
// Keepalive: clients may ping every kClientPingIntervalMin even without calls, so that a long
// silent prefill keeps its connection; faster ones get GOAWAY. The server pings idle connections
// itself, so that a client that vanished without closing is noticed and its sequences are
// cancelled.
//
// Running out of file descriptors or connections costs those who come then, not those who are there
// or who come later (listener.h).
//
// Thread rule: thread-safe.
#ifndef BATON_COMMON_RPC_SERVER_H_
#define BATON_COMMON_RPC_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/mutex.h"
#include "common/rpc/listener.h"

namespace baton::rpc {

inline constexpr int kReceiveMessageBytesMax = 16 << 20;
inline constexpr Duration kClientPingIntervalMin = std::chrono::seconds(10);

struct RpcServerOptions {
  // HOST:PORT; port 0 takes a free one.
  std::string listen = "127.0.0.1:0";
  int receive_message_bytes_max = kReceiveMessageBytesMax;
  // Calls per connection at a time; more wait at the client.
  int concurrent_streams_max = 1024;
  // What gRPC may keep in its buffers, all connections together.
  size_t buffer_bytes_max = size_t{1} << 30;
  // Threads of the synchronous API; the callback API has a small pool of its own.
  int threads_max = 32;
  Duration client_ping_interval_min = kClientPingIntervalMin;
  // Pings of the server on a silent connection, and how long it waits for the answer.
  Duration keepalive_interval = std::chrono::seconds(30);
  Duration keepalive_limit = std::chrono::seconds(10);
};

class RpcServer {
 public:
  // Listens and serves. Warns in the log when other machines can reach the address: there is no TLS
  // yet. `services` must outlive the server.
  // ERRORS: InvalidArgument: the address; FailedPrecondition: it cannot be listened on (taken, not
  // permitted), naming it and the system's reason.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
      const std::vector<std::string>& service_names);

  // Shutdown with no grace.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // Where it listens, with the real port.
  const HostPort& address() const { return listener_->address(); }

  void SetReady(bool ready);

  // Not ready, takes no new connection, lets running calls end, and cancels those that are left
  // after `grace` (an open health Watch or worker session lasts that long: finish the real work
  // first). Returns when no call is left. Idempotent.
  void Shutdown(Duration grace) EXCLUDES(mutex_);

  // A channel into this server without a socket.
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  RpcServer(std::unique_ptr<Listener> listener,
            std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
            std::vector<std::string> service_names, std::unique_ptr<grpc::Server> server);

  const std::unique_ptr<Listener> listener_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  const std::vector<std::string> service_names_;
  const std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  bool shut_down_ GUARDED_BY(mutex_) = false;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_SERVER_H_
