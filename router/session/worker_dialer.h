// Keeps one session with one worker: dials, hands the stream to the core, dials again when it ends,
// with a pause that doubles while attempts fail. The worker may come up before or after the router.
//
// Thread rule: thread-safe. Stop before the core is destroyed.
#ifndef BATON_ROUTER_SESSION_WORKER_DIALER_H_
#define BATON_ROUTER_SESSION_WORKER_DIALER_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "baton/worker/v1/session.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "router/core/router_core.h"
#include "router/limits.h"

namespace baton::router {

class WorkerDialer {
 public:
  WorkerDialer(std::string address, std::shared_ptr<grpc::Channel> channel,
               const RouterLimits& limits, RouterCore* core);
  ~WorkerDialer();
  WorkerDialer(const WorkerDialer&) = delete;
  WorkerDialer& operator=(const WorkerDialer&) = delete;

  void Start() { Dial(); }
  // Ends the session and waits until gRPC is done with it. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Attempt;

  void Dial() EXCLUDES(mutex_);
  void OnClosed(const std::shared_ptr<Attempt>& attempt, const absl::Status& status)
      EXCLUDES(mutex_);
  void OnAlarm(bool fired) EXCLUDES(mutex_);

  const std::string address_;
  const std::unique_ptr<worker::v1::WorkerService::Stub> stub_;
  const RouterLimits limits_;
  RouterCore* const core_;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<Attempt> attempt_ GUARDED_BY(mutex_);
  // One object per pause: a callback may still be running when the next pause begins.
  std::unique_ptr<grpc::Alarm> alarm_ GUARDED_BY(mutex_);
  // Attempts and alarms whose last callback has not run yet.
  int pending_ GUARDED_BY(mutex_) = 0;
  Duration backoff_ GUARDED_BY(mutex_){0};
  int failures_ GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SESSION_WORKER_DIALER_H_
