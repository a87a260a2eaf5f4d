// All requests of the router, from admission to their end: queueing, placement, the frames that
// start and cancel sequences, and the order of tokens.
//
// Invariants:
//  - Each token index of a request is delivered once, in order, whichever worker sent it.
//  - Whenever a request ends, every worker that has it open has been told, or will report its end.
//  - A request is started on a decode worker only together with a prefill credit.
//  - Queued requests of a model are tried in order of admission. One that a worker has refused for
//    lack of room lets later ones pass, for at most `overtaking_max`.
//
// Thread-compatible: owned by the core's loop.
#ifndef BATON_ROUTER_CORE_REQUEST_TABLE_H_
#define BATON_ROUTER_CORE_REQUEST_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "baton/worker/v1/session.pb.h"
#include "router/core/active_request.h"
#include "router/limits.h"
#include "router/metrics.h"
#include "router/policy/placement_policy.h"
#include "router/registry/worker_registry.h"

namespace baton::router {

class RequestTable {
 public:
  // Everything is borrowed and must outlive the table.
  RequestTable(const RouterLimits& limits, WorkerRegistry* registry, const PlacementPolicy* policy,
               RouterMetrics* metrics);

  // Queues a request. Ends it at once when its deadline has passed, its client has gone, or the
  // queue of its model is full (RESOURCE_EXHAUSTED).
  void Admit(AdmittedRequest request, std::shared_ptr<ResponseSink> sink, TimePoint now);
  // Ends a request; nothing when it is not (any more) there.
  void Cancel(RequestId id, const absl::Status& status, TimePoint now);
  void EndAll(const absl::Status& status, TimePoint now);
  // The client has taken tokens: its worker may send more.
  void GrantCredits(RequestId id);

  // Frames. `worker` is the session that they came from.
  void OnReserved(Worker* worker, const worker::v1::Reserved& reserved, TimePoint now);
  void OnStep(Worker* worker, const worker::v1::StepOutput& step, TimePoint now);
  void OnPairFailed(const Worker& worker, const worker::v1::PairFailed& failure, TimePoint now);
  // Before the worker leaves the registry.
  void OnWorkerLost(Worker* worker, TimePoint now);

  // Starts what can be started. `ready` says whether the model has a complete worker set.
  void Dispatch(const std::string& model, bool ready, TimePoint now);
  // Deadlines, the time limit of the queue, models that stay unready.
  void OnTimers(TimePoint now);
  // When OnTimers or Dispatch must run although nothing happens.
  TimePoint NextDeadline(TimePoint now) const;
  // Clients that do not read, and ended calls whose client has not taken the status.
  void ScanSinks(TimePoint now);

  size_t queued() const;
  size_t running() const { return requests_.size() - queued(); }
  size_t closing() const { return closing_.size(); }

 private:
  struct Queue {
    // By admission number.
    std::map<uint64_t, ActiveRequest*> waiting;
    size_t running = 0;
    TimePoint unready_since = kNever;
  };

  ActiveRequest* Find(AttemptKey key, const Worker& worker);
  // --- placement
  std::vector<WorkerView> Views(const WorkerRegistry::Model& model) const;
  bool TryPlace(ActiveRequest* request, const std::vector<WorkerView>& views, TimePoint now);
  void StartHandover(ActiveRequest* request, Worker* prefill, Worker* decode, TimePoint now);
  void StartPrefill(ActiveRequest* request, Worker* prefill, Worker* decode, TimePoint now);
  void StartColocated(ActiveRequest* request, Worker* worker, TimePoint now);
  worker::v1::SessionRequest MakeStart(const ActiveRequest& request, worker::v1::StartMode mode,
                                       TimePoint now) const;
  void Send(Worker* worker, worker::v1::SessionRequest frame);
  // --- tokens
  bool AcceptToken(ActiveRequest* request, const Worker& worker, const worker::v1::TokenOutput& in,
                   TimePoint now, std::vector<double>* gaps);
  // True when the request has ended.
  bool DeliverToken(ActiveRequest* request, GeneratedToken token, TimePoint now,
                    std::vector<double>* gaps);
  bool FinishIfComplete(ActiveRequest* request, TimePoint now);
  void FlushDelta(ActiveRequest* request);
  UsageCounts Usage(const ActiveRequest& request) const;
  // --- ends
  void NoteEnd(ActiveRequest* request, const Worker& worker, const worker::v1::SequenceEnd& end);
  void ResolveEnd(ActiveRequest* request, const Worker& worker, const worker::v1::SequenceEnd& end,
                  TimePoint now);
  void ResolveErrorEnd(ActiveRequest* request, const Worker& worker,
                       const worker::v1::SequenceEnd& end, TimePoint now);
  void Requeue(ActiveRequest* request, SessionId refused_by, TimePoint now);
  void CancelOnWorkers(ActiveRequest* request);
  void Finish(ActiveRequest* request, const OutputFinish& finish, TimePoint now);
  void Fail(ActiveRequest* request, const absl::Status& status, TimePoint now);
  void Remove(ActiveRequest* request);
  bool PairAllowed(uint64_t prefill, uint64_t decode, TimePoint now) const;
  void PublishGauges(const std::string& model, const Queue& queue);

  const RouterLimits limits_;
  WorkerRegistry* const registry_;
  const PlacementPolicy* const policy_;
  RouterMetrics* const metrics_;

  absl::flat_hash_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::map<std::string, Queue> queues_;
  // Requests with a deadline.
  std::set<std::pair<TimePoint, RequestId>> deadlines_;
  uint64_t next_admission_ = 1;
  uint64_t placements_ = 0;
  // Transfer ids: the high half of the request ids, a counter of their own below.
  uint64_t next_transfer_ = 1;
  // (P instance, D instance) -> until when the pair is not chosen. Bounded.
  std::map<std::pair<uint64_t, uint64_t>, TimePoint> failed_pairs_;
  // Ended, but the client has not taken everything.
  std::vector<std::shared_ptr<ResponseSink>> closing_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_CORE_REQUEST_TABLE_H_
