// What the router counts, as an interface: the router knows no metrics library. Label values are
// bounded by construction: `model` is the name of a served model or kUnknownModel (a misspelt name
// never makes a new time series), `result` is a gRPC status code name.
#ifndef BATON_ROUTER_METRICS_H_
#define BATON_ROUTER_METRICS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::router {

inline constexpr absl::string_view kUnknownModel = "unknown";

// Thread-safe. Methods are called from the core's loop and from gRPC threads and must not block.
class RouterMetrics {
 public:
  virtual ~RouterMetrics() = default;

  // Once for every Generate and StreamGenerate call. `code` is a gRPC status name ("OK").
  virtual void RequestEnded(absl::string_view model, absl::string_view code, double seconds) = 0;
  // Once for every OK request. `reason` is "stop" or "length".
  virtual void RequestFinished(absl::string_view model, absl::string_view reason,
                               int64_t generated_tokens) = 0;
  // Once for every request that enters the queue.
  virtual void RequestAdmitted(absl::string_view model, int64_t prompt_tokens) = 0;
  // Once for every placement. `path` is "handover", "prefill_only" or "colocated".
  virtual void RequestPlaced(absl::string_view model, absl::string_view path,
                             double queue_seconds) = 0;
  // Tokens accepted from workers, each index once; also of requests that fail later.
  virtual void GeneratedTokens(absl::string_view model, int64_t tokens) = 0;
  virtual void TimeToFirstToken(absl::string_view model, double seconds) = 0;
  // One call per engine step: the gaps of all streams that got a token in it.
  virtual void InterTokenLatencies(absl::string_view model, absl::Span<const double> seconds) = 0;
  // Gauges.
  virtual void QueuedRequests(absl::string_view model, int64_t requests) = 0;
  virtual void RunningRequests(absl::string_view model, int64_t requests) = 0;
  // `worker` is one of the configured worker addresses; `role` prefill, decode or combined.
  virtual void WorkerUp(absl::string_view worker, absl::string_view role, bool up) = 0;
  // A session that ended without a drain; `role` is "unknown" when it never said Hello.
  virtual void WorkerSessionFailed(absl::string_view worker, absl::string_view role) = 0;
  // A model of the worker was refused because it disagrees with other workers.
  virtual void WorkerModelRefused(absl::string_view worker, absl::string_view role) = 0;
  // The prefill worker reported that it cannot hand KV to a decode worker.
  virtual void PairFailed(absl::string_view worker, absl::string_view role) = 0;
};

// Counts nothing; never destroyed.
RouterMetrics* NullRouterMetrics();

}  // namespace baton::router

#endif  // BATON_ROUTER_METRICS_H_
