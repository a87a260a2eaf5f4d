#include "worker/worker_process.h"

#include <utility>

#include "common/base/mutex.h"

namespace baton::worker {
namespace {

constexpr Duration kIdlePoll = std::chrono::milliseconds(20);

const char* RoleName(v1::WorkerRole role) {
  switch (role) {
    case v1::WORKER_ROLE_PREFILL:
      return "prefill";
    case v1::WORKER_ROLE_DECODE:
      return "decode";
    default:
      return "combined";
  }
}

SessionServiceOptions MakeSessionOptions(const WorkerOptions& options, v1::WorkerRole role,
                                         uint64_t instance_id) {
  SessionServiceOptions out;
  out.role = role;
  out.worker_id = options.advertise;
  out.instance_id = instance_id;
  out.prefill_credits = role == v1::WORKER_ROLE_DECODE ? 0 : options.prefill_credits;
  out.clock = options.clock;
  return out;
}

}  // namespace

LoopOptions MakeLoopOptions(const HostedModel& model, const WorkerOptions& options,
                            EventSink* sink) {
  LoopOptions out;
  out.model = model.name();
  out.kv = model.kv;
  out.executor = model.executor;
  out.sink = sink;
  out.clock = options.clock;
  out.on_broken = options.on_broken;
  out.limits.tokens_per_step_max = options.tokens_per_step_max;
  out.limits.running_sequences_max = options.sequences_max;
  return out;
}

WorkerProcess::WorkerProcess(const ModelHost& host, const WorkerOptions& options,
                             v1::WorkerRole role, uint64_t instance_id, const MakeLoopFn& make_loop,
                             MetricsRegistry& registry)
    : sessions_(std::make_unique<SessionService>(MakeSessionOptions(options, role, instance_id))),
      metrics_(registry, RoleName(role)),
      clock_(options.clock) {
  for (const HostedModel& model : host.models()) {
    loops_.push_back(make_loop(model, sessions_.get()));
    sessions_->AddModel(model.description, loops_.back().get());
    metrics_.AddLoop(loops_.back().get());
  }
  sessions_->set_artifacts(&host.artifacts());
  metrics_.SetDevice(&host.device());
  metrics_.SetSessionCount([sessions = sessions_.get()] { return sessions->num_sessions(); });
  metrics_.Start(registry);
}

WorkerProcess::~WorkerProcess() {
  CloseSessions();
  StopLoops();
}

void WorkerProcess::BeginDrain() { sessions_->BeginDrain(); }

bool WorkerProcess::WaitIdle(Duration limit) {
  const TimePoint deadline = SaturatingAdd(clock_->Now(), limit);
  Mutex mutex;
  CondVar never;
  while (true) {
    bool idle = true;
    for (const auto& loop : loops_) idle = idle && loop->idle();
    if (idle) return true;
    if (clock_->Now() >= deadline) return false;
    MutexLock lock(mutex);
    never.WaitFor(mutex, kIdlePoll);
  }
}

void WorkerProcess::CloseSessions() { sessions_->Shutdown(); }

void WorkerProcess::StopLoops() {
  for (const auto& loop : loops_) loop->Stop();
}

}  // namespace baton::worker
