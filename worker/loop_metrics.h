// Publishes the snapshots of engine loops (LoopLoad) as metrics, at each scrape: sequences, blocks
// by state, steps and tokens. Nothing is counted on the loops' hot path.
//
// Thread rule: thread-safe once constructed; AddLoop before the first scrape.
#ifndef BATON_WORKER_LOOP_METRICS_H_
#define BATON_WORKER_LOOP_METRICS_H_

#include <functional>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "device/device.h"
#include "worker/messages.h"

namespace baton::worker {

class LoopMetrics {
 public:
  // `role` is prefill, decode or combined.
  LoopMetrics(MetricsRegistry& registry, std::string role);

  // `loop` must outlive this object.
  void AddLoop(const EngineLoop* loop);
  // Asked at each scrape for its memory; must outlive this object.
  void SetDevice(const Device* device) { device_ = device; }
  // Asked at each scrape for the number of open router sessions.
  void SetSessionCount(std::function<uint32_t()> sessions);
  void Start(MetricsRegistry& registry);

 private:
  void Publish();

  const std::string role_;
  std::vector<const EngineLoop*> loops_;
  const Device* device_ = nullptr;
  std::function<uint32_t()> sessions_;
  GaugeFamily& running_;
  GaugeFamily& waiting_;
  GaugeFamily& queued_tokens_;
  GaugeFamily& blocks_;
  CounterFamily& steps_;
  CounterFamily& prompt_tokens_;
  CounterFamily& sampled_tokens_;
  CounterFamily& preemptions_;
  CounterFamily& nonfinite_;
  CounterFamily& kernel_launches_;
  CounterFamily& graph_launches_;
  GaugeFamily& stalled_;
  GaugeFamily& device_memory_;
  GaugeFamily& router_sessions_;
  ScrapeCallback callback_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_LOOP_METRICS_H_
