#include "router/prometheus_metrics.h"

#include "common/metrics/canonical.h"

namespace baton::router {
namespace {

class PrometheusMetrics final : public RouterMetrics {
 public:
  explicit PrometheusMetrics(MetricsRegistry& registry)
      : requests_(registry.AddCounter(metrics::kRequests)),
        finished_(registry.AddCounter(metrics::kFinishedRequests)),
        prompt_tokens_(registry.AddCounter(metrics::kPromptTokens)),
        generated_tokens_(registry.AddCounter(metrics::kGeneratedTokens)),
        first_token_(registry.AddHistogram(metrics::kTimeToFirstTokenSeconds)),
        inter_token_(registry.AddHistogram(metrics::kInterTokenLatencySeconds)),
        duration_(registry.AddHistogram(metrics::kRequestDurationSeconds)),
        queue_duration_(registry.AddHistogram(metrics::kQueueDurationSeconds)),
        request_prompt_tokens_(registry.AddHistogram(metrics::kRequestPromptTokens)),
        request_generated_tokens_(registry.AddHistogram(metrics::kRequestGeneratedTokens)),
        queued_(registry.AddGauge(metrics::kQueuedRequests)),
        running_(registry.AddGauge(metrics::kRunningRequests)),
        placements_(registry.AddCounter(metrics::kPlacements)),
        worker_up_(registry.AddGauge(metrics::kWorkerUp)),
        session_failures_(registry.AddCounter(metrics::kWorkerSessionFailures)),
        refused_models_(registry.AddCounter(metrics::kWorkerRefusedModels)),
        pair_failures_(registry.AddCounter(metrics::kPairFailures)) {}

  void RequestEnded(absl::string_view model, absl::string_view code, double seconds) override {
    requests_.With({model, code})->Increment();
    duration_.With({model})->Observe(seconds);
  }
  void RequestFinished(absl::string_view model, absl::string_view reason,
                       int64_t generated_tokens) override {
    finished_.With({model, reason})->Increment();
    request_generated_tokens_.With({model})->Observe(static_cast<double>(generated_tokens));
  }
  void RequestAdmitted(absl::string_view model, int64_t prompt_tokens) override {
    prompt_tokens_.With({model})->Increment(static_cast<double>(prompt_tokens));
    request_prompt_tokens_.With({model})->Observe(static_cast<double>(prompt_tokens));
  }
  void RequestPlaced(absl::string_view model, absl::string_view path,
                     double queue_seconds) override {
    placements_.With({model, path})->Increment();
    queue_duration_.With({model})->Observe(queue_seconds);
  }
  void GeneratedTokens(absl::string_view model, int64_t tokens) override {
    generated_tokens_.With({model})->Increment(static_cast<double>(tokens));
  }
  void TimeToFirstToken(absl::string_view model, double seconds) override {
    first_token_.With({model})->Observe(seconds);
  }
  void InterTokenLatencies(absl::string_view model, absl::Span<const double> seconds) override {
    inter_token_.With({model})->Observe(seconds);
  }
  void QueuedRequests(absl::string_view model, int64_t requests) override {
    queued_.With({model})->Set(static_cast<double>(requests));
  }
  void RunningRequests(absl::string_view model, int64_t requests) override {
    running_.With({model})->Set(static_cast<double>(requests));
  }
  void WorkerUp(absl::string_view worker, absl::string_view role, bool up) override {
    worker_up_.With({worker, role})->Set(up ? 1 : 0);
    // Known now: the series it had before would stay at 0 for ever.
    if (role != "unknown") worker_up_.Remove({worker, "unknown"});
  }
  void WorkerSessionFailed(absl::string_view worker, absl::string_view role) override {
    session_failures_.With({worker, role})->Increment();
  }
  void WorkerModelRefused(absl::string_view worker, absl::string_view role) override {
    refused_models_.With({worker, role})->Increment();
  }
  void PairFailed(absl::string_view worker, absl::string_view role) override {
    pair_failures_.With({worker, role})->Increment();
  }

 private:
  CounterFamily& requests_;
  CounterFamily& finished_;
  CounterFamily& prompt_tokens_;
  CounterFamily& generated_tokens_;
  HistogramFamily& first_token_;
  HistogramFamily& inter_token_;
  HistogramFamily& duration_;
  HistogramFamily& queue_duration_;
  HistogramFamily& request_prompt_tokens_;
  HistogramFamily& request_generated_tokens_;
  GaugeFamily& queued_;
  GaugeFamily& running_;
  CounterFamily& placements_;
  GaugeFamily& worker_up_;
  CounterFamily& session_failures_;
  CounterFamily& refused_models_;
  CounterFamily& pair_failures_;
};

}  // namespace

std::unique_ptr<RouterMetrics> MakePrometheusMetrics(MetricsRegistry& registry) {
  return std::make_unique<PrometheusMetrics>(registry);
}

}  // namespace baton::router
