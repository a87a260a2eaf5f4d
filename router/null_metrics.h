// Metrics that nobody looks at; also what recorders in tests derive from, for the few calls they
// want.
#ifndef BATON_ROUTER_NULL_METRICS_H_
#define BATON_ROUTER_NULL_METRICS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/metrics.h"

namespace baton::router {

class NullMetrics : public RouterMetrics {
 public:
  void RequestEnded(absl::string_view, absl::string_view, double) override {}
  void RequestFinished(absl::string_view, absl::string_view, int64_t) override {}
  void RequestAdmitted(absl::string_view, int64_t) override {}
  void RequestPlaced(absl::string_view, absl::string_view, double) override {}
  void GeneratedTokens(absl::string_view, int64_t) override {}
  void TimeToFirstToken(absl::string_view, double) override {}
  void InterTokenLatencies(absl::string_view, absl::Span<const double>) override {}
  void QueuedRequests(absl::string_view, int64_t) override {}
  void RunningRequests(absl::string_view, int64_t) override {}
  void WorkerUp(absl::string_view, absl::string_view, bool) override {}
  void WorkerSessionFailed(absl::string_view, absl::string_view) override {}
  void WorkerModelRefused(absl::string_view, absl::string_view) override {}
  void PairFailed(absl::string_view, absl::string_view) override {}
};

}  // namespace baton::router

#endif  // BATON_ROUTER_NULL_METRICS_H_
