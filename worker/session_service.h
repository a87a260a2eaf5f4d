// The worker's end of router sessions (proto/baton/worker/v1/session.proto): greets routers, hands
// their commands to the engine loops, sends the loops' events back, serves artifacts, and ends a
// session whose router has been silent for its heartbeat limit. When a session ends, every loop is
// told and cancels what belongs to it.
//
// Thread rule: thread-safe. AddModel only before the service is registered with a server.
#ifndef BATON_WORKER_SESSION_SERVICE_H_
#define BATON_WORKER_SESSION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "baton/worker/v1/session.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/artifacts.h"
#include "worker/messages.h"

namespace baton::worker {

inline constexpr uint32_t kSessionProtocolVersion = 1;

struct SessionServiceOptions {
  v1::WorkerRole role = v1::WORKER_ROLE_COMBINED;
  // The advertised address: how routers and operators name this worker.
  std::string worker_id;
  // Random per process start; a restarted worker on the same address is another one.
  uint64_t instance_id = 0;
  std::string transfer_address;
  // Per router session.
  uint32_t prefill_credits = 0;
  // Frames queued towards one router before it counts as not reading, and its session ends.
  size_t queue_frames_max = 16384;
  uint32_t sessions_max = 64;
  const Clock* clock = Clock::Real();
};

class SessionService final : public v1::WorkerService::CallbackService, public EventSink {
 public:
  explicit SessionService(SessionServiceOptions options);
  ~SessionService() override;

  // `loop` and `artifacts` must outlive the service's sessions (Shutdown).
  void AddModel(v1::ModelDescription description, EngineLoop* loop);
  void set_artifacts(const ArtifactStore* artifacts) { artifacts_ = artifacts; }

  // Known only once the server listens (port 0). REQUIRES: no session yet.
  void set_addresses(std::string worker_id, std::string transfer_address);

  // Tells routers to send nothing new, and the loops to refuse it.
  void BeginDrain();
  // Ends all sessions and joins the ticker. Call before the server is destroyed.
  void Shutdown();

  uint32_t num_sessions() const;

  void OnStepOutput(StepOutput output) override;
  void OnPairFailed(const PairFailed& failure) override;

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* Session(
      grpc::CallbackServerContext* context) override;

 private:
  class RouterSession;
  struct Model {
    v1::ModelDescription description;
    EngineLoop* loop = nullptr;
  };

  void Forget(RouterSessionId id);
  std::vector<std::shared_ptr<RouterSession>> Sessions() const;
  v1::WorkerHello MakeHello(const std::string& session_id) const;
  void FillLoads(v1::WorkerHeartbeat& heartbeat) const;
  void Tick();

  SessionServiceOptions options_;
  // Constant once serving.
  std::map<std::string, Model> models_;
  const ArtifactStore* artifacts_ = nullptr;

  mutable Mutex mutex_;
  CondVar stop_changed_;
  absl::flat_hash_map<RouterSessionId, std::shared_ptr<RouterSession>> sessions_ GUARDED_BY(mutex_);
  uint64_t next_session_ GUARDED_BY(mutex_) = 1;
  bool draining_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_SESSION_SERVICE_H_
