#include "router/metrics.h"

namespace baton::router {
namespace {

class NullMetrics final : public RouterMetrics {
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

}  // namespace

RouterMetrics* NullRouterMetrics() {
  static NullMetrics metrics;
  return &metrics;
}

}  // namespace baton::router
