// The workers that are connected, what each may serve, and what this router has running on each.
//
// Invariants: a worker serves a model here only if it agrees with the worker that brought the model
// (model_definition.h); once the last worker of a model has gone, the next one defines it anew. A
// prefill credit is in use from the moment a placement counts on it until the worker has reported
// the end of that prompt, so a worker never has more prompts than it has offered to take.
//
// Thread-compatible: owned by the core's loop. Does no I/O.
#ifndef BATON_ROUTER_REGISTRY_WORKER_REGISTRY_H_
#define BATON_ROUTER_REGISTRY_WORKER_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/clock.h"
#include "common/base/strong_id.h"
#include "router/limits.h"
#include "router/registry/model_definition.h"
#include "router/registry/worker_session.h"

namespace baton::router {

// An attempt of a request, as frames name it.
struct AttemptKey {
  RequestId request_id;
  uint32_t attempt = 0;
  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AttemptKey& key) {
    return H::combine(std::move(h), key.request_id, key.attempt);
  }
};

enum class WorkerRole { kPrefill, kDecode, kCombined };
absl::string_view WorkerRoleName(WorkerRole role);

struct WorkerModel {
  uint32_t block_tokens = 0;
  uint32_t num_blocks = 0;
  // From the last heartbeat; counts sequences of all routers.
  uint32_t waiting_sequences = 0;
  uint32_t running_sequences = 0;
  uint32_t free_blocks = 0;
  uint32_t total_blocks = 0;
  uint64_t queued_prompt_tokens = 0;
};

struct Worker {
  SessionId session_id;
  // As dialled.
  std::string address;
  std::shared_ptr<WorkerSession> session;
  TimePoint last_heard;
  TimePoint next_heartbeat;
  uint64_t heartbeats_sent = 0;
  // A send has failed: the core closes the session before it goes on.
  bool broken = false;

  // Known once greeted.
  bool greeted = false;
  bool draining = false;
  std::string worker_id;
  uint64_t instance_id = 0;
  WorkerRole role = WorkerRole::kCombined;
  std::string transfer_address;
  uint32_t prefill_credits = 0;
  std::map<std::string, WorkerModel> models;

  // What it has not reported the end of.
  struct Sequence {
    bool holds_credit = false;
    uint64_t prompt_tokens = 0;
  };
  absl::flat_hash_map<AttemptKey, Sequence> sequences;
  uint32_t credits_in_use = 0;
  // Of sequences that hold a credit.
  uint64_t prompt_tokens_outstanding = 0;

  bool HasCredit() const { return credits_in_use < prefill_credits; }
};

class WorkerRegistry {
 public:
  struct Model {
    ModelDefinition definition;
    std::string tokenizer_key;
    std::set<SessionId> workers;
  };
  struct Refusal {
    std::string model;
    absl::Status status;
  };

  explicit WorkerRegistry(const RouterLimits& limits) : limits_(limits) {}

  Worker* Add(SessionId id, std::string address, std::shared_ptr<WorkerSession> session,
              TimePoint now);
  // Null when the session is not (any more) known.
  Worker* Find(SessionId id);
  void Remove(SessionId id);

  // Takes the worker's Hello: the models it may serve are in worker->models afterwards. Returns
  // those it may not serve. ERRORS: FailedPrecondition: another protocol version, a second Hello,
  // the same process already connected; InvalidArgument: malformed. The session must then be
  // closed.
  absl::StatusOr<std::vector<Refusal>> Greet(Worker* worker, const worker::v1::WorkerHello& hello);

  void UpdateLoad(Worker* worker, const worker::v1::WorkerHeartbeat& heartbeat);

  // Account of sequences. Begin with `holds_credit` takes a credit; a credit that was taken before
  // by TakeCredit is passed on with `credit_taken`.
  void TakeCredit(Worker* worker) { ++worker->credits_in_use; }
  void ReturnCredit(Worker* worker);
  void BeginSequence(Worker* worker, AttemptKey key, uint64_t prompt_tokens, bool credit_taken);
  // The prompt has been computed: its credit is free, the sequence goes on.
  void ReleaseSequenceCredit(Worker* worker, AttemptKey key);
  void EndSequence(Worker* worker, AttemptKey key);

  // True when a worker set for the model is connected and takes new work; otherwise `reason` says
  // what is missing.
  bool CanServe(const Model& model, std::string* reason);

  std::map<std::string, Model>& models() { return models_; }
  std::map<SessionId, std::unique_ptr<Worker>>& workers() { return workers_; }

 private:
  absl::Status AcceptModel(Worker* worker, const worker::v1::ModelDescription& description);

  const RouterLimits limits_;
  std::map<SessionId, std::unique_ptr<Worker>> workers_;
  // A model without workers is kept for its definition: it is still listed.
  std::map<std::string, Model> models_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REGISTRY_WORKER_REGISTRY_H_
