// One bidirectional stream with a worker, as the core sees it: frames of
// proto/baton/worker/v1/session.proto out, events in (RouterCore::PostFrame, PostSessionClosed).
// session/ implements it over gRPC, tests in memory.
#ifndef BATON_ROUTER_REGISTRY_WORKER_SESSION_H_
#define BATON_ROUTER_REGISTRY_WORKER_SESSION_H_

#include "absl/status/status.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/strong_id.h"

namespace baton::router {

// Names a session inside this process; never used twice.
using SessionId = StrongId<struct RouterSessionTag, uint64_t>;

// Called by the core's loop only; must not block. Implementations are thread-safe.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  // Queues a frame; frames leave in order. False when the session is closed or its queue is full;
  // it is then of no more use.
  virtual bool Send(worker::v1::SessionRequest frame) = 0;
  // Ends the stream. Idempotent. The core ignores what still arrives from it.
  virtual void Close(const absl::Status& reason) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REGISTRY_WORKER_SESSION_H_
