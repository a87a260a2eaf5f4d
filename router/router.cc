#include "router/router.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "router/core/router_core.h"
#include "router/policy/least_loaded_policy.h"
#include "router/service/generation_service.h"
#include "router/service/id_source.h"
#include "router/session/worker_dialer.h"
#include "router/text/tokenizer_codec.h"

namespace baton::router {
namespace {

constexpr std::chrono::milliseconds kShutdownPoll(10);
// After the deadline calls have been ended; gRPC still needs a moment to be done with them.
constexpr std::chrono::milliseconds kAfterEnd(500);

absl::Status CheckLimits(const RouterLimits& l) {
  const auto positive = [](bool good, const char* name) {
    return good ? absl::OkStatus()
                : absl::InvalidArgumentError(absl::StrCat("limits.", name, " must be positive"));
  };
  RETURN_IF_ERROR(positive(l.calls_max > 0, "calls_max"));
  RETURN_IF_ERROR(positive(l.request_bytes_max > 0, "request_bytes_max"));
  RETURN_IF_ERROR(positive(l.queue_max > 0, "queue_max"));
  RETURN_IF_ERROR(positive(l.initial_credits > 0, "initial_credits"));
  RETURN_IF_ERROR(positive(l.stall_limit > Duration::zero(), "stall_limit"));
  RETURN_IF_ERROR(positive(l.heartbeat_interval > Duration::zero(), "heartbeat_interval"));
  RETURN_IF_ERROR(positive(l.reconnect_backoff_min > Duration::zero(), "reconnect_backoff_min"));
  if (l.tokenizer_threads < 2) {
    return absl::InvalidArgumentError("limits.tokenizer_threads must be 2 or more");
  }
  if (l.heartbeat_limit <= l.heartbeat_interval) {
    return absl::InvalidArgumentError("limits.heartbeat_limit must exceed heartbeat_interval");
  }
  return absl::OkStatus();
}

class RouterImpl final : public Router {
 public:
  RouterImpl(RouterOptions options, std::unique_ptr<IdSource> ids)
      : options_(std::move(options)),
        ids_(std::move(ids)),
        gate_(options_.limits.calls_max, options_.limits.request_bytes_max),
        pool_({.threads = options_.limits.tokenizer_threads,
               .queue_max = options_.limits.tokenizer_queue_max,
               .small_bytes = options_.limits.small_prompt_bytes}),
        core_(MakeCoreOptions()),
        context_({.limits = options_.limits,
                  .core = &core_,
                  .catalog = &catalog_,
                  .pool = &pool_,
                  .gate = &gate_,
                  .ids = ids_.get(),
                  .metrics = options_.metrics,
                  .clock = options_.clock}),
        service_(&context_) {}

  ~RouterImpl() override { Shutdown(options_.clock->Now()); }

  absl::Status Start() {
    for (WorkerEndpoint& worker : options_.workers) {
      std::shared_ptr<grpc::Channel> channel = worker.channel;
      if (channel == nullptr) {
        ASSIGN_OR_RETURN(
            channel, rpc::MakeChannel(worker.address,
                                      {.reconnect_max = options_.limits.reconnect_backoff_max}));
      }
      dialers_.push_back(std::make_unique<WorkerDialer>(worker.address, std::move(channel),
                                                        options_.limits, &core_));
      options_.metrics->WorkerUp(worker.address, "unknown", false);
    }
    core_.Start();
    for (auto& dialer : dialers_) dialer->Start();
    return absl::OkStatus();
  }

  grpc::Service* generation_service() override { return &service_; }

  bool ready() const override {
    if (core_.draining()) return false;
    const auto models = catalog_.List();
    return std::any_of(models.begin(), models.end(), [](const auto& m) { return m->ready; });
  }

  RouterSnapshot snapshot() const override {
    const RouterCore::Stats stats = core_.stats();
    return {.open_calls = gate_.calls(),
            .queued_requests = stats.queued_requests,
            .running_requests = stats.running_requests,
            .worker_sequences = stats.worker_sequences,
            .prefill_credits_in_use = stats.prefill_credits_in_use,
            .workers = stats.workers,
            .models_ready = stats.models_ready,
            .request_bytes = gate_.bytes()};
  }

  void BeginDrain() override { core_.BeginDrain(); }

  void Shutdown(TimePoint deadline) override {
    MutexLock lock(shutdown_mutex_);
    if (shut_down_) return;
    shut_down_ = true;
    BeginDrain();
    WaitForCalls(deadline);
    // Sessions last to the end of the requests; then requests end before their threads do.
    core_.Stop();
    pool_.Stop();
    for (auto& dialer : dialers_) dialer->Stop();
    WaitForCalls(SaturatingAdd(options_.clock->Now(), kAfterEnd));
  }

 private:
  RouterCore::Options MakeCoreOptions() {
    RouterCore::Options options;
    options.limits = options_.limits;
    options.router_id = absl::StrCat("router-", absl::Hex(ids_->router_number()));
    options.clock = options_.clock;
    options.metrics = options_.metrics;
    options.policy = std::make_unique<LeastLoadedPolicy>();
    options.codec_factory = MakeTokenizerCodec;
    options.pool = &pool_;
    options.catalog = &catalog_;
    return options;
  }

  void WaitForCalls(TimePoint deadline) REQUIRES(shutdown_mutex_) {
    while (gate_.calls() > 0 && options_.clock->Now() < deadline) {
      shutdown_poll_.WaitFor(shutdown_mutex_, kShutdownPoll);
    }
  }

  RouterOptions options_;
  const std::unique_ptr<IdSource> ids_;
  CallGate gate_;
  ModelCatalog catalog_;
  TextPool pool_;
  RouterCore core_;
  const ServiceContext context_;
  GenerationService service_;
  std::vector<std::unique_ptr<WorkerDialer>> dialers_;

  Mutex shutdown_mutex_;
  CondVar shutdown_poll_;
  bool shut_down_ GUARDED_BY(shutdown_mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Router>> Router::Create(RouterOptions options) {
  RETURN_IF_ERROR(CheckLimits(options.limits));
  if (options.workers.empty()) return absl::InvalidArgumentError("workers: none given");
  std::set<std::string> addresses;
  for (const WorkerEndpoint& worker : options.workers) {
    if (worker.address.empty()) return absl::InvalidArgumentError("workers: empty address");
    if (!addresses.insert(worker.address).second) {
      return absl::InvalidArgumentError(absl::StrCat("workers: ", worker.address, " twice"));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<IdSource> ids, IdSource::Create());
  auto router = std::make_unique<RouterImpl>(std::move(options), std::move(ids));
  RETURN_IF_ERROR(router->Start());
  return router;
}

}  // namespace baton::router
