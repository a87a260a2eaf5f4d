#include "cli/router_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/base/status_macros.h"
#include "router/prometheus_metrics.h"

namespace baton::cli {
namespace {

constexpr Duration kReadinessPoll = std::chrono::milliseconds(50);
// Calls that the drain has ended still need a moment to tell their clients.
constexpr Duration kServerGrace = std::chrono::seconds(1);

}  // namespace

void AddRouterFlags(CLI::App& command, RouterFlags& flags) {
  command.add_option("--queue", flags.queue_max, "Requests that may wait for a worker, per model")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--stall-limit", flags.stall_seconds,
                  "Seconds after which a client that reads nothing is ended")
      ->check(CLI::Range(0.1, 86400.0));
  command
      .add_option("--heartbeat-limit-ms", flags.heartbeat_limit_ms,
                  "A worker that is silent for so long is taken for dead")
      ->check(CLI::Range(100, 600000));
}

absl::StatusOr<std::unique_ptr<RouterFront>> RouterFront::Start(
    const RouterFlags& flags, std::vector<router::WorkerEndpoint> workers,
    const std::string& listen, MetricsRegistry& registry) {
  auto front =
      std::unique_ptr<RouterFront>(new RouterFront);  // NOLINT(banned-new): private constructor
  front->metrics_ = router::MakePrometheusMetrics(registry);
  router::RouterOptions options;
  options.workers = std::move(workers);
  options.limits.queue_max = flags.queue_max;
  options.limits.stall_limit =
      std::chrono::nanoseconds(static_cast<int64_t>(flags.stall_seconds * 1e9));
  options.limits.heartbeat_limit = std::chrono::milliseconds(flags.heartbeat_limit_ms);
  options.limits.heartbeat_interval = options.limits.heartbeat_limit / 4;
  options.metrics = front->metrics_.get();
  ASSIGN_OR_RETURN(front->router_, router::Router::Create(std::move(options)));
  rpc::RpcServerOptions server;
  server.listen = listen;
  ASSIGN_OR_RETURN(front->server_,
                   rpc::RpcServer::Start(server, {front->router_->generation_service()},
                                         {"baton.v1.GenerationService"}));
  front->readiness_ = std::thread([raw = front.get()] { raw->FollowReadiness(); });
  return front;
}

RouterFront::~RouterFront() { Drain(Duration::zero()); }

void RouterFront::FollowReadiness() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      changed_.WaitFor(mutex_, kReadinessPoll);
      if (stopping_) return;
    }
    server_->SetReady(router_->ready());
  }
}

void RouterFront::Drain(Duration grace) {
  if (readiness_.joinable()) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.SignalAll();
    readiness_.join();
  }
  if (server_ == nullptr) return;
  server_->SetReady(false);
  router_->Shutdown(SaturatingAdd(Clock::Real()->Now(), grace));
  server_->Shutdown(kServerGrace);
}

}  // namespace baton::cli
