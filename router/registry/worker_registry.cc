#include "router/registry/worker_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"

namespace baton::router {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kAddressBytesMax = 512;
constexpr uint32_t kCreditsMax = 1 << 16;
// Names that may have been served since the start; a model is never forgotten, so this is a limit.
constexpr size_t kModelsMax = 1024;

absl::StatusOr<WorkerRole> ParseRole(worker::v1::WorkerRole role) {
  switch (role) {
    case worker::v1::WORKER_ROLE_PREFILL:
      return WorkerRole::kPrefill;
    case worker::v1::WORKER_ROLE_DECODE:
      return WorkerRole::kDecode;
    case worker::v1::WORKER_ROLE_COMBINED:
      return WorkerRole::kCombined;
    default:
      return absl::InvalidArgumentError(absl::StrCat("hello: role ", static_cast<int>(role)));
  }
}

}  // namespace

absl::string_view WorkerRoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
    case WorkerRole::kCombined:
      return "combined";
  }
  return "unknown";
}

Worker* WorkerRegistry::Add(SessionId id, std::string address,
                            std::shared_ptr<WorkerSession> session, TimePoint now) {
  auto worker = std::make_unique<Worker>();
  worker->session_id = id;
  worker->address = std::move(address);
  worker->session = std::move(session);
  worker->last_heard = now;
  worker->next_heartbeat = now;
  Worker* raw = worker.get();
  CHECK(workers_.emplace(id, std::move(worker)).second) << "session id used twice";
  return raw;
}

Worker* WorkerRegistry::Find(SessionId id) {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : it->second.get();
}

void WorkerRegistry::Remove(SessionId id) {
  for (auto& [name, model] : models_) model.workers.erase(id);
  workers_.erase(id);
}

absl::StatusOr<std::vector<WorkerRegistry::Refusal>> WorkerRegistry::Greet(
    Worker* worker, const worker::v1::WorkerHello& hello) {
  if (worker->greeted) return absl::FailedPreconditionError("hello: second one on a session");
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("hello: protocol version ",
                                                      hello.protocol_version(),
                                                      ", this router has ", kProtocolVersion));
  }
  ASSIGN_OR_RETURN(const WorkerRole role, ParseRole(hello.role()));
  if (hello.worker_id().size() > kAddressBytesMax ||
      hello.transfer_address().size() > kAddressBytesMax) {
    return absl::InvalidArgumentError("hello: address too long");
  }
  if (role == WorkerRole::kDecode && hello.transfer_address().empty()) {
    return absl::InvalidArgumentError("hello: a decode worker without transfer_address");
  }
  if (role != WorkerRole::kDecode && hello.prefill_credits() == 0) {
    return absl::InvalidArgumentError("hello: prefill_credits is 0");
  }
  if (static_cast<size_t>(hello.models_size()) > limits_.models_per_worker_max) {
    return absl::InvalidArgumentError(absl::StrCat("hello: ", hello.models_size(), " models"));
  }
  for (const auto& [id, other] : workers_) {
    if (other->greeted && other->instance_id == hello.instance_id() &&
        other->worker_id == hello.worker_id()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "hello: the worker is already connected as ", rpc::QuoteForError(other->address)));
    }
  }
  worker->greeted = true;
  worker->worker_id = hello.worker_id();
  worker->instance_id = hello.instance_id();
  worker->role = role;
  worker->transfer_address = hello.transfer_address();
  worker->prefill_credits = std::min(hello.prefill_credits(), kCreditsMax);
  std::vector<Refusal> refusals;
  for (const auto& description : hello.models()) {
    const absl::Status status = AcceptModel(worker, description);
    if (!status.ok()) refusals.push_back({description.name(), status});
  }
  return refusals;
}

absl::Status WorkerRegistry::AcceptModel(Worker* worker,
                                         const worker::v1::ModelDescription& description) {
  ASSIGN_OR_RETURN(ModelDefinition definition,
                   ParseModelDefinition(description, limits_.artifact_bytes_max));
  if (worker->models.contains(definition.name)) {
    return absl::InvalidArgumentError("model description: name twice");
  }
  if (!models_.contains(definition.name) && models_.size() >= kModelsMax) {
    return absl::ResourceExhaustedError("model description: too many models");
  }
  Model& model = models_[definition.name];
  if (model.workers.empty()) {
    model.tokenizer_key = TokenizerKey(definition.artifacts);
    model.definition = std::move(definition);
  } else {
    RETURN_IF_ERROR(CheckAgreement(model.definition, definition));
  }
  model.workers.insert(worker->session_id);
  WorkerModel& served = worker->models[model.definition.name];
  served.block_tokens = description.block_tokens();
  served.num_blocks = description.num_blocks();
  served.free_blocks = description.num_blocks();
  served.total_blocks = description.num_blocks();
  return absl::OkStatus();
}

void WorkerRegistry::UpdateLoad(Worker* worker, const worker::v1::WorkerHeartbeat& heartbeat) {
  for (const auto& load : heartbeat.loads()) {
    const auto it = worker->models.find(load.model());
    if (it == worker->models.end()) continue;
    it->second.waiting_sequences = load.waiting_sequences();
    it->second.running_sequences = load.running_sequences();
    it->second.free_blocks = load.free_blocks();
    it->second.total_blocks = load.total_blocks();
    it->second.queued_prompt_tokens = load.queued_prompt_tokens();
  }
}

void WorkerRegistry::ReturnCredit(Worker* worker) {
  CHECK_GT(worker->credits_in_use, 0u);
  --worker->credits_in_use;
}

void WorkerRegistry::BeginSequence(Worker* worker, AttemptKey key, uint64_t prompt_tokens,
                                   bool credit_taken) {
  const bool added = worker->sequences
                         .emplace(key, Worker::Sequence{.holds_credit = credit_taken,
                                                        .prompt_tokens = prompt_tokens})
                         .second;
  CHECK(added) << "attempt started twice on one worker";
  if (credit_taken) worker->prompt_tokens_outstanding += prompt_tokens;
}

void WorkerRegistry::ReleaseSequenceCredit(Worker* worker, AttemptKey key) {
  const auto it = worker->sequences.find(key);
  if (it == worker->sequences.end() || !it->second.holds_credit) return;
  it->second.holds_credit = false;
  worker->prompt_tokens_outstanding -= it->second.prompt_tokens;
  ReturnCredit(worker);
}

void WorkerRegistry::EndSequence(Worker* worker, AttemptKey key) {
  ReleaseSequenceCredit(worker, key);
  worker->sequences.erase(key);
}

bool WorkerRegistry::CanServe(const Model& model, std::string* reason) {
  bool prefill = false;
  bool decode = false;
  bool any = false;
  for (const SessionId id : model.workers) {
    const Worker* worker = Find(id);
    any = true;
    if (worker->draining) continue;
    if (worker->role == WorkerRole::kCombined) return true;
    prefill |= worker->role == WorkerRole::kPrefill;
    decode |= worker->role == WorkerRole::kDecode;
  }
  if (prefill && decode) return true;
  if (prefill) {
    *reason = "no decode worker is connected";
  } else if (decode) {
    *reason = "no prefill worker is connected";
  } else {
    *reason = any ? "its workers are shutting down" : "no worker is connected";
  }
  return false;
}

}  // namespace baton::router
