// The router: everything between the public gRPC API and the worker sessions, behind one factory.
// A daemon registers generation_service() with its server; the router dials the workers itself.
//
// Life: Create -> (serve) -> BeginDrain -> server Shutdown(deadline) -> Shutdown -> destroy. The
// service must outlive the server that it is registered with.
// Thread-safe.
#ifndef BATON_ROUTER_ROUTER_H_
#define BATON_ROUTER_ROUTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "router/limits.h"
#include "router/metrics.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace baton::router {

// One worker to dial. With a channel (for example Server::InProcessChannel) `address` is a label
// for logs and metrics; without one it is dialled, plaintext, and redialled for ever.
struct WorkerEndpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
};

struct RouterOptions {
  std::vector<WorkerEndpoint> workers;
  RouterLimits limits;
  const Clock* clock = Clock::Real();
  // Not owned; must outlive the router.
  RouterMetrics* metrics = NullRouterMetrics();
};

// What is held at the moment: all zero but `workers` and `models_ready` when nothing runs.
struct RouterSnapshot {
  int64_t open_calls = 0;
  int64_t queued_requests = 0;
  int64_t running_requests = 0;
  // Sequences that some worker has not reported the end of, and prefill credits they hold.
  int64_t worker_sequences = 0;
  int64_t prefill_credits_in_use = 0;
  int64_t workers = 0;
  int64_t models_ready = 0;
  int64_t request_bytes = 0;
};

class Router {
 public:
  virtual ~Router() = default;

  // Starts dialling at once; workers may come up later.
  // ERRORS: InvalidArgument: no worker, an empty or repeated address, a limit of zero; Internal: no
  // random numbers.
  static absl::StatusOr<std::unique_ptr<Router>> Create(RouterOptions options);

  // baton.v1.GenerationService. Owned by the router.
  virtual grpc::Service* generation_service() = 0;

  // True while at least one model can be served and no drain has begun.
  virtual bool ready() const = 0;
  virtual RouterSnapshot snapshot() const = 0;

  // New requests get UNAVAILABLE from now on; what runs or is queued goes on. Idempotent.
  virtual void BeginDrain() = 0;

  // Drains, waits until `deadline` for open calls, ends what is left with UNAVAILABLE, closes the
  // sessions and joins all threads. Idempotent; also done by the destructor, without waiting.
  virtual void Shutdown(TimePoint deadline) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTER_H_
