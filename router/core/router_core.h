// The router's state and the one thread that owns it: workers, models, requests. Everything else
// (gRPC calls, worker sessions, the text pool) hands events in through a queue and gets answers
// through ResponseSink and WorkerSession; no gRPC is used here. With a FakeClock and RunOnce() a
// test drives it step by step on its own thread.
//
// Each round handles all events that have arrived, then timers, then starts what can be started.
// Timers never run before events that were already queued, and a pause of the process itself (all
// clocks jump) does not count as silence of the workers.
//
// Thread rule: methods are thread-safe unless they say otherwise.
#ifndef BATON_ROUTER_CORE_ROUTER_CORE_H_
#define BATON_ROUTER_CORE_ROUTER_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/thread_checker.h"
#include "router/core/request_table.h"
#include "router/core/response_sink.h"
#include "router/limits.h"
#include "router/metrics.h"
#include "router/policy/placement_policy.h"
#include "router/registry/model_catalog.h"
#include "router/registry/tokenizer_loader.h"
#include "router/registry/worker_registry.h"
#include "router/registry/worker_session.h"
#include "router/text/text_pool.h"

namespace baton::router {

class RouterCore {
 public:
  struct Options {
    RouterLimits limits;
    // How workers name this router in their logs.
    std::string router_id;
    const Clock* clock = Clock::Real();
    RouterMetrics* metrics = NullRouterMetrics();
    std::unique_ptr<PlacementPolicy> policy;
    TextCodecFactory codec_factory;
    // Borrowed; stopped before the core is destroyed.
    TextPool* pool = nullptr;
    // Borrowed; the core publishes here.
    ModelCatalog* catalog = nullptr;
  };

  struct Stats {
    int64_t queued_requests = 0;
    int64_t running_requests = 0;
    // Ended calls whose client has not taken everything.
    int64_t closing_requests = 0;
    int64_t worker_sequences = 0;
    int64_t prefill_credits_in_use = 0;
    int64_t workers = 0;
    int64_t models_ready = 0;
  };

  explicit RouterCore(Options options);
  ~RouterCore();

  // Runs rounds on a thread of its own until Stop(), which ends all requests with UNAVAILABLE and
  // closes all sessions. Events after that are dropped. Stop is idempotent.
  void Start();
  void Stop();
  // One round on the calling thread, waiting up to `wait` for events. REQUIRES: not started; always
  // the same thread.
  void RunOnce(Duration wait = Duration::zero());

  // The sink gets its end in any case, also when the core has stopped.
  void Submit(AdmittedRequest request, std::shared_ptr<ResponseSink> sink);
  // Ends a request that is not ended yet. A request that has not arrived yet is ended on arrival if
  // its sink is closed by then.
  void Cancel(RequestId id, const absl::Status& status);
  // The client has taken tokens (ResponseSink::drained_tokens).
  void NotifyDrained(RequestId id);
  // New Submits are refused with UNAVAILABLE.
  void BeginDrain() { draining_ = true; }
  bool draining() const { return draining_; }

  // A session whose stream is open. The core sends RouterHello.
  SessionId OpenSession(std::string address, std::shared_ptr<WorkerSession> session);
  // False when the core is behind by too many frames: the caller should end the session.
  bool PostFrame(SessionId id, worker::v1::SessionResponse frame);
  // The last event of a session.
  void PostSessionClosed(SessionId id, absl::Status status);

  // As of the end of the last round.
  Stats stats() const;

 private:
  struct SubmitEvent {
    AdmittedRequest request;
    std::shared_ptr<ResponseSink> sink;
  };
  struct CancelEvent {
    RequestId id;
    absl::Status status;
  };
  struct DrainedEvent {
    RequestId id;
  };
  struct OpenedEvent {
    SessionId id;
    std::string address;
    std::shared_ptr<WorkerSession> session;
  };
  struct FrameEvent {
    SessionId id;
    worker::v1::SessionResponse frame;
  };
  struct ClosedEvent {
    SessionId id;
    absl::Status status;
  };
  struct BuiltEvent {
    std::string key;
    TokenizerLoader::CodecOr codec;
  };
  using Event = std::variant<SubmitEvent, CancelEvent, DrainedEvent, OpenedEvent, FrameEvent,
                             ClosedEvent, BuiltEvent>;

  void Post(Event event);
  void Run();
  void Handle(Event event, TimePoint now);
  void ForgivePause(TimePoint now);
  TimePoint NextWake(TimePoint now) const;
  void UpdateStats();
  void StopSessions();

  // core_sessions.cc
  void OnOpened(OpenedEvent event, TimePoint now);
  void OnFrame(SessionId id, const worker::v1::SessionResponse& frame, TimePoint now);
  void OnHello(Worker* worker, const worker::v1::WorkerHello& hello, TimePoint now);
  void OnDraining(Worker* worker);
  void LoseWorker(Worker* worker, const absl::Status& reason, TimePoint now);
  void LoseBroken(TimePoint now);
  void TendSessions(TimePoint now);
  void PublishModels();

  const Options options_;
  const RouterLimits& limits_ = options_.limits;
  BoundedQueue<Event> events_;
  std::atomic<size_t> frames_queued_ = 0;
  std::atomic<uint64_t> next_session_ = 1;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;

  // Owned by the loop.
  ThreadChecker loop_;
  WorkerRegistry registry_;
  TokenizerLoader loader_;
  RequestTable requests_;
  TimePoint last_round_;
  TimePoint next_scan_;
  bool models_changed_ = false;

  mutable Mutex mutex_;
  Stats stats_ GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CORE_ROUTER_CORE_H_
