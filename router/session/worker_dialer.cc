#include "router/session/worker_dialer.h"

#include <grpc/support/time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/rpc/message_stream.h"

namespace baton::router {
namespace {

using Stream = rpc::ClientMessageStream<worker::v1::SessionRequest, worker::v1::SessionResponse>;

// An address that cannot be reached is logged at the first failure and then once in so many.
constexpr int kFailuresPerLog = 60;
constexpr std::chrono::milliseconds kStopPoll(50);

class StreamSession final : public WorkerSession {
 public:
  explicit StreamSession(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  bool Send(worker::v1::SessionRequest frame) override { return stream_->Send(std::move(frame)); }
  void Close(const absl::Status& reason) override { stream_->Close(reason); }

 private:
  const std::shared_ptr<Stream> stream_;
};

gpr_timespec After(Duration delay) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(delay.count(), GPR_TIMESPAN));
}

}  // namespace

struct WorkerDialer::Attempt {
  std::shared_ptr<Stream> stream;
  // The worker has said something: a later failure is a loss, not one more failed attempt.
  std::atomic<bool> heard = false;

  Mutex mutex;
  // Set once the core knows the session. A stream may end before that.
  std::optional<SessionId> id GUARDED_BY(mutex);
  std::optional<absl::Status> closed GUARDED_BY(mutex);
};

WorkerDialer::WorkerDialer(std::string address, std::shared_ptr<grpc::Channel> channel,
                           const RouterLimits& limits, RouterCore* core)
    : address_(std::move(address)),
      stub_(worker::v1::WorkerService::NewStub(std::move(channel))),
      limits_(limits),
      core_(core) {}

WorkerDialer::~WorkerDialer() { Stop(); }

void WorkerDialer::Stop() {
  std::shared_ptr<Attempt> attempt;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    attempt = attempt_;
    if (alarm_ != nullptr) alarm_->Cancel();
  }
  if (attempt != nullptr) attempt->stream->Close(absl::CancelledError("the router is stopping"));
  MutexLock lock(mutex_);
  while (pending_ > 0) changed_.WaitFor(mutex_, kStopPoll);
}

void WorkerDialer::Dial() {
  auto attempt = std::make_shared<Attempt>();
  attempt->stream = Stream::Create(limits_.frames_out_max);
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    attempt_ = attempt;
    ++pending_;
  }
  attempt->stream->Start(
      [this](grpc::ClientContext* context, auto* reactor) {
        stub_->async()->Session(context, reactor);
      },
      {.on_message =
           [this, attempt](worker::v1::SessionResponse frame) {
             attempt->heard = true;
             // The worker speaks after RouterHello only, which the core sends: the id is known.
             SessionId id;
             {
               MutexLock lock(attempt->mutex);
               id = attempt->id.value_or(SessionId());
             }
             if (!core_->PostFrame(id, std::move(frame))) {
               attempt->stream->Close(absl::ResourceExhaustedError("the router is behind"));
             }
           },
       .on_closed = [this, attempt](const absl::Status& status) { OnClosed(attempt, status); }});
  const SessionId id =
      core_->OpenSession(address_, std::make_shared<StreamSession>(attempt->stream));
  std::optional<absl::Status> closed;
  {
    MutexLock lock(attempt->mutex);
    attempt->id = id;
    closed = attempt->closed;
  }
  if (closed.has_value()) core_->PostSessionClosed(id, *closed);
}

void WorkerDialer::OnClosed(const std::shared_ptr<Attempt>& attempt, const absl::Status& status) {
  const absl::Status reason =
      status.ok() ? absl::UnavailableError("the worker ended the session") : status;
  std::optional<SessionId> id;
  {
    MutexLock lock(attempt->mutex);
    attempt->closed = reason;
    id = attempt->id;
  }
  if (id.has_value()) core_->PostSessionClosed(*id, reason);
  MutexLock lock(mutex_);
  attempt_ = nullptr;
  if (attempt->heard) {
    failures_ = 0;
    backoff_ = Duration::zero();
  } else if (!stopped_ && failures_++ % kFailuresPerLog == 0) {
    LogWarning("worker cannot be reached", {{"worker", address_}, {"reason", reason.ToString()}});
  }
  if (!stopped_) {
    backoff_ =
        std::clamp(2 * backoff_, limits_.reconnect_backoff_min, limits_.reconnect_backoff_max);
    ++pending_;
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(After(backoff_), [this](bool fired) { OnAlarm(fired); });
  }
  --pending_;
  changed_.SignalAll();
}

void WorkerDialer::OnAlarm(bool fired) {
  if (fired) Dial();
  MutexLock lock(mutex_);
  --pending_;
  changed_.SignalAll();
}

}  // namespace baton::router
