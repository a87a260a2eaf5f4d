// One worker, whatever its role: the engine loops of its models behind a session service, with
// their metrics, and the order in which all of it drains and stops. prefill_worker/ and
// decode_worker/ say which loops it runs.
//
// Life: construct -> register session_service() with a server -> set_addresses -> (serve) ->
// BeginDrain -> WaitIdle -> CloseSessions -> server Shutdown -> StopLoops -> destroy.
// Thread-safe once constructed.
#ifndef BATON_WORKER_WORKER_PROCESS_H_
#define BATON_WORKER_WORKER_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "worker/loop/loop_options.h"
#include "worker/loop_metrics.h"
#include "worker/model_host.h"
#include "worker/session_service.h"
#include "worker/worker_options.h"

namespace baton::worker {

// What every loop of a worker is made from.
LoopOptions MakeLoopOptions(const HostedModel& model, const WorkerOptions& options,
                            EventSink* sink);

class WorkerProcess {
 public:
  using MakeLoopFn =
      std::function<std::unique_ptr<EngineLoop>(const HostedModel& model, EventSink* sink)>;

  // `host` and `registry` outlive this object. `make_loop` is called once per model.
  WorkerProcess(const ModelHost& host, const WorkerOptions& options, v1::WorkerRole role,
                uint64_t instance_id, const MakeLoopFn& make_loop, MetricsRegistry& registry);
  ~WorkerProcess();

  SessionService& session_service() { return *sessions_; }

  void BeginDrain();
  // True once every loop is idle; polls until `limit` has passed.
  bool WaitIdle(Duration limit);
  void CloseSessions();
  // Ends what still runs. Idempotent.
  void StopLoops();

 private:
  std::unique_ptr<SessionService> sessions_;
  std::vector<std::unique_ptr<EngineLoop>> loops_;
  LoopMetrics metrics_;
  const Clock* const clock_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_WORKER_PROCESS_H_
