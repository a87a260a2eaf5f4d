// Metrics that every process has: baton_build_info and process_*, read from /proc at each scrape.
#ifndef BATON_COMMON_METRICS_PROCESS_METRICS_H_
#define BATON_COMMON_METRICS_PROCESS_METRICS_H_

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"

namespace baton {

// Registers them. They are exposed as long as the callback that is returned lives.
[[nodiscard]] ScrapeCallback AddProcessMetrics(MetricsRegistry& registry,
                                               absl::string_view version);

}  // namespace baton

#endif  // BATON_COMMON_METRICS_PROCESS_METRICS_H_
