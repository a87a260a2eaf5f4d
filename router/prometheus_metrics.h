// Maps what the router counts (metrics.h) onto the canonical metrics (common/metrics/canonical.h).
#ifndef BATON_ROUTER_PROMETHEUS_METRICS_H_
#define BATON_ROUTER_PROMETHEUS_METRICS_H_

#include <memory>

#include "common/metrics/metrics.h"
#include "router/metrics.h"

namespace baton::router {

// `registry` must outlive the result. Thread-safe.
std::unique_ptr<RouterMetrics> MakePrometheusMetrics(MetricsRegistry& registry);

}  // namespace baton::router

#endif  // BATON_ROUTER_PROMETHEUS_METRICS_H_
