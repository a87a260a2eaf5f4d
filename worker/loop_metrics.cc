#include "worker/loop_metrics.h"

#include <utility>

#include "common/metrics/canonical.h"

namespace baton::worker {

LoopMetrics::LoopMetrics(MetricsRegistry& registry, std::string role)
    : role_(std::move(role)),
      running_(registry.AddGauge(metrics::kRunningSequences)),
      waiting_(registry.AddGauge(metrics::kWaitingSequences)),
      queued_tokens_(registry.AddGauge(metrics::kQueuedPromptTokens)),
      blocks_(registry.AddGauge(metrics::kKvBlocks)),
      steps_(registry.AddCounter(metrics::kEngineSteps)),
      prompt_tokens_(registry.AddCounter(metrics::kComputedPromptTokens)),
      sampled_tokens_(registry.AddCounter(metrics::kSampledTokens)),
      preemptions_(registry.AddCounter(metrics::kPreemptions)),
      nonfinite_(registry.AddCounter(metrics::kNonfiniteLogits)),
      kernel_launches_(registry.AddCounter(metrics::kKernelLaunches)),
      graph_launches_(registry.AddCounter(metrics::kGraphLaunches)),
      stalled_(registry.AddGauge(metrics::kEngineStalledSeconds)),
      device_memory_(registry.AddGauge(metrics::kDeviceMemoryBytes)),
      router_sessions_(registry.AddGauge(metrics::kRouterSessions)) {}

void LoopMetrics::AddLoop(const EngineLoop* loop) { loops_.push_back(loop); }

void LoopMetrics::SetSessionCount(std::function<uint32_t()> sessions) {
  sessions_ = std::move(sessions);
}

void LoopMetrics::Start(MetricsRegistry& registry) {
  callback_ = registry.AddScrapeCallback([this] { Publish(); });
}

void LoopMetrics::Publish() {
  for (const EngineLoop* loop : loops_) {
    const LoopLoad load = loop->load();
    running_.With({load.model, role_})->Set(load.running_sequences);
    waiting_.With({load.model, role_})->Set(load.waiting_sequences);
    queued_tokens_.With({load.model, role_})->Set(static_cast<double>(load.queued_prompt_tokens));
    blocks_.With({load.model, role_, "quarantined"})->Set(load.quarantined_blocks);
    blocks_.With({load.model, role_, "in_flight"})->Set(load.in_flight_blocks);
    blocks_.With({load.model, role_, "leased"})->Set(load.leased_blocks);
    blocks_.With({load.model, role_, "owned"})->Set(load.owned_blocks);
    blocks_.With({load.model, role_, "cached"})->Set(load.cached_blocks);
    blocks_.With({load.model, role_, "free"})->Set(load.free_blocks);
    steps_.With({load.model, role_})->RaiseTo(static_cast<double>(load.steps));
    prompt_tokens_.With({load.model, role_})
        ->RaiseTo(static_cast<double>(load.prompt_tokens_computed));
    sampled_tokens_.With({load.model, role_})->RaiseTo(static_cast<double>(load.tokens_generated));
    preemptions_.With({load.model, role_})->RaiseTo(static_cast<double>(load.preemptions));
    nonfinite_.With({load.model, role_})->RaiseTo(static_cast<double>(load.nonfinite_logits));
    kernel_launches_.With({load.model, role_})->RaiseTo(static_cast<double>(load.kernel_launches));
    graph_launches_.With({load.model, role_})->RaiseTo(static_cast<double>(load.graph_launches));
    stalled_.With({load.model, role_})->Set(load.stalled_seconds);
  }
  if (device_ != nullptr) {
    const std::string name(device_->name());
    device_memory_.With({name, role_, "used"})->Set(static_cast<double>(device_->memory_used()));
    device_memory_.With({name, role_, "max"})->Set(static_cast<double>(device_->memory_max()));
  }
  if (sessions_) router_sessions_.With({role_})->Set(sessions_());
}

}  // namespace baton::worker
