#include "router/core/router_core.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::router {
namespace {

constexpr Duration kWaitMax = std::chrono::seconds(1);
constexpr Duration kScanInterval = std::chrono::seconds(1);

// Events that are not frames are bounded by what they are about: a call in flight has at most one
// submit, one cancel and a few drain notices in the queue.
size_t EventsMax(const RouterLimits& limits) {
  constexpr size_t kEventsPerCall = 16;
  constexpr size_t kOther = 65536;
  return limits.frames_in_max + kEventsPerCall * limits.calls_max + kOther;
}

}  // namespace

RouterCore::RouterCore(Options options)
    : options_(std::move(options)),
      events_(EventsMax(options_.limits)),
      registry_(options_.limits),
      loader_(options_.pool, options_.codec_factory,
              [this](std::string key, TokenizerLoader::CodecOr codec) {
                Post(BuiltEvent{std::move(key), std::move(codec)});
              }),
      requests_(options_.limits, &registry_, options_.policy.get(), options_.metrics),
      last_round_(options_.clock->Now()),
      next_scan_(last_round_) {}

RouterCore::~RouterCore() { Stop(); }

void RouterCore::Start() {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void RouterCore::Stop() {
  stopping_ = true;
  events_.Wake();
  if (thread_.joinable()) {
    thread_.join();
  } else if (!events_.closed()) {
    StopSessions();
  }
}

void RouterCore::Run() {
  while (!stopping_) {
    const TimePoint now = options_.clock->Now();
    const TimePoint wake = NextWake(now);
    RunOnce(std::clamp(wake - now, Duration::zero(), kWaitMax));
  }
  StopSessions();
}

void RouterCore::StopSessions() {
  const TimePoint now = options_.clock->Now();
  const absl::Status status = absl::UnavailableError("the router is shutting down");
  events_.Close();
  // What was queued still gets its end.
  for (Event& event : events_.PopAll(Duration::zero())) Handle(std::move(event), now);
  requests_.EndAll(status, now);
  for (auto& [id, worker] : registry_.workers()) worker->session->Close(status);
  UpdateStats();
}

void RouterCore::RunOnce(Duration wait) {
  std::vector<Event> events = events_.PopAll(wait);
  loop_.Check();
  const TimePoint now = options_.clock->Now();
  ForgivePause(now);
  for (Event& event : events) Handle(std::move(event), now);
  TendSessions(now);
  requests_.OnTimers(now);
  if (now >= next_scan_) {
    requests_.ScanSinks(now);
    next_scan_ = SaturatingAdd(now, std::min(kScanInterval, limits_.stall_limit / 4));
  }
  LoseBroken(now);
  loader_.Pump(&registry_, now);
  if (models_changed_) PublishModels();
  for (const auto& [name, model] : registry_.models()) {
    std::string reason;
    const bool ready = registry_.CanServe(model, &reason) && loader_.codec(model.tokenizer_key);
    requests_.Dispatch(name, ready, now);
  }
  LoseBroken(now);
  UpdateStats();
}

// After a pause of this process (a debugger, a stopped container) workers seem to have been silent,
// although nobody listened.
void RouterCore::ForgivePause(TimePoint now) {
  const Duration expected = kWaitMax + limits_.heartbeat_interval;
  const Duration gap = now - last_round_;
  last_round_ = now;
  if (gap <= expected) return;
  for (auto& [id, worker] : registry_.workers()) worker->last_heard += gap - expected;
}

TimePoint RouterCore::NextWake(TimePoint now) const {
  if (models_changed_) return now;  // The last round lost a worker at its very end.
  TimePoint wake = std::min(next_scan_, requests_.NextDeadline(now));
  wake = std::min(wake, loader_.NextDeadline());
  for (const auto& [id, worker] : const_cast<RouterCore*>(this)->registry_.workers()) {
    wake = std::min(
        {wake, worker->next_heartbeat, SaturatingAdd(worker->last_heard, limits_.heartbeat_limit)});
  }
  return wake;
}

void RouterCore::Handle(Event event, TimePoint now) {
  if (auto* frame = std::get_if<FrameEvent>(&event)) {
    --frames_queued_;
    OnFrame(frame->id, frame->frame, now);
  } else if (auto* drained = std::get_if<DrainedEvent>(&event)) {
    requests_.GrantCredits(drained->id);
  } else if (auto* submit = std::get_if<SubmitEvent>(&event)) {
    requests_.Admit(std::move(submit->request), std::move(submit->sink), now);
  } else if (auto* cancel = std::get_if<CancelEvent>(&event)) {
    requests_.Cancel(cancel->id, cancel->status, now);
  } else if (auto* opened = std::get_if<OpenedEvent>(&event)) {
    OnOpened(std::move(*opened), now);
  } else if (auto* closed = std::get_if<ClosedEvent>(&event)) {
    if (Worker* worker = registry_.Find(closed->id)) LoseWorker(worker, closed->status, now);
  } else if (auto* built = std::get_if<BuiltEvent>(&event)) {
    loader_.OnBuilt(built->key, std::move(built->codec));
    models_changed_ = true;
  }
}

void RouterCore::Submit(AdmittedRequest request, std::shared_ptr<ResponseSink> sink) {
  if (draining_) {
    sink->Fail(absl::UnavailableError("the router is draining"));
    return;
  }
  // The sink is shared so that it is there to be told when the queue refuses the event.
  if (!events_.TryPush(SubmitEvent{std::move(request), sink})) {
    sink->Fail(absl::UnavailableError("the router is shutting down"));
  }
}

void RouterCore::Cancel(RequestId id, const absl::Status& status) { Post(CancelEvent{id, status}); }

void RouterCore::NotifyDrained(RequestId id) { Post(DrainedEvent{id}); }

SessionId RouterCore::OpenSession(std::string address, std::shared_ptr<WorkerSession> session) {
  const SessionId id(next_session_++);
  if (!events_.TryPush(OpenedEvent{id, std::move(address), session})) {
    session->Close(absl::UnavailableError("the router is shutting down"));
  }
  return id;
}

bool RouterCore::PostFrame(SessionId id, worker::v1::SessionResponse frame) {
  if (frames_queued_.fetch_add(1) >= limits_.frames_in_max ||
      !events_.TryPush(FrameEvent{id, std::move(frame)})) {
    --frames_queued_;
    return false;
  }
  return true;
}

void RouterCore::PostSessionClosed(SessionId id, absl::Status status) {
  Post(ClosedEvent{id, std::move(status)});
}

void RouterCore::Post(Event event) {
  // Refused only after Stop, when nobody is interested any more; EventsMax leaves room for all
  // else.
  if (!events_.TryPush(std::move(event)) && !events_.closed()) {
    LogError("router event queue is full, event dropped");
  }
}

RouterCore::Stats RouterCore::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void RouterCore::UpdateStats() {
  Stats stats;
  stats.queued_requests = static_cast<int64_t>(requests_.queued());
  stats.running_requests = static_cast<int64_t>(requests_.running());
  stats.closing_requests = static_cast<int64_t>(requests_.closing());
  for (const auto& [id, worker] : registry_.workers()) {
    if (worker->greeted) ++stats.workers;
    stats.worker_sequences += static_cast<int64_t>(worker->sequences.size());
    stats.prefill_credits_in_use += worker->credits_in_use;
  }
  for (const auto& model : options_.catalog->List()) stats.models_ready += model->ready ? 1 : 0;
  MutexLock lock(mutex_);
  stats_ = stats;
}

}  // namespace baton::router
