// The router as the `router` and `serve` commands run it: flags, server, drain.
#ifndef BATON_CLI_ROUTER_FLAGS_H_
#define BATON_CLI_ROUTER_FLAGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "router/metrics.h"
#include "router/router.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

struct RouterFlags {
  uint32_t queue_max = 1024;
  double stall_seconds = 60;
  uint32_t heartbeat_limit_ms = 2000;
};

void AddRouterFlags(CLI::App& command, RouterFlags& flags);

class RouterFront {
 public:
  // Starts dialling and serving. ERRORS: those of Router::Create and RpcServer::Start.
  static absl::StatusOr<std::unique_ptr<RouterFront>> Start(
      const RouterFlags& flags, std::vector<router::WorkerEndpoint> workers,
      const std::string& listen, MetricsRegistry& registry);
  ~RouterFront();

  std::string address() const { return server_->address().ToString(); }
  // Refuses new requests, waits up to `grace` for the running ones, and stops.
  void Drain(Duration grace);

 private:
  RouterFront() = default;
  void FollowReadiness();

  std::unique_ptr<router::RouterMetrics> metrics_;
  std::unique_ptr<router::Router> router_;
  std::unique_ptr<rpc::RpcServer> server_;
  // Copies router_->ready() into the health service.
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread readiness_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_ROUTER_FLAGS_H_
