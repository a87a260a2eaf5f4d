#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/rpc/error_details.h"
#include "router/core/router_core.h"

// The part of RouterCore that deals with workers and models.
namespace baton::router {
namespace {

constexpr uint32_t kProtocolVersion = 1;

uint32_t ToMilliseconds(Duration d) {
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

}  // namespace

void RouterCore::OnOpened(OpenedEvent event, TimePoint now) {
  Worker* worker = registry_.Add(event.id, std::move(event.address), std::move(event.session), now);
  worker->next_heartbeat = SaturatingAdd(now, limits_.heartbeat_interval);
  worker::v1::SessionRequest frame;
  worker::v1::RouterHello* hello = frame.mutable_hello();
  hello->set_protocol_version(kProtocolVersion);
  hello->set_router_id(options_.router_id);
  hello->set_heartbeat_interval_ms(ToMilliseconds(limits_.heartbeat_interval));
  hello->set_heartbeat_limit_ms(ToMilliseconds(limits_.heartbeat_limit));
  if (!worker->session->Send(std::move(frame))) worker->broken = true;
}

void RouterCore::OnFrame(SessionId id, const worker::v1::SessionResponse& frame, TimePoint now) {
  Worker* worker = registry_.Find(id);
  if (worker == nullptr || worker->broken) return;
  worker->last_heard = now;
  const auto kind = frame.frame_case();
  if (!worker->greeted && kind != worker::v1::SessionResponse::kHello) {
    LoseWorker(worker, absl::FailedPreconditionError("first frame is not WorkerHello"), now);
    return;
  }
  switch (kind) {
    case worker::v1::SessionResponse::kHello:
      return OnHello(worker, frame.hello(), now);
    case worker::v1::SessionResponse::kHeartbeat:
      return registry_.UpdateLoad(worker, frame.heartbeat());
    case worker::v1::SessionResponse::kReserved:
      return requests_.OnReserved(worker, frame.reserved(), now);
    case worker::v1::SessionResponse::kStep:
      return requests_.OnStep(worker, frame.step(), now);
    case worker::v1::SessionResponse::kDraining:
      return OnDraining(worker);
    case worker::v1::SessionResponse::kArtifact: {
      const absl::Status status = loader_.OnChunk(worker, frame.artifact(), &registry_, now);
      if (!status.ok()) LoseWorker(worker, status, now);
      return;
    }
    case worker::v1::SessionResponse::kPairFailed:
      LogWarning("worker pair cannot move KV", {{"worker", worker->address},
                                                {"peer", frame.pair_failed().peer_address()},
                                                {"reason", frame.pair_failed().reason()}});
      options_.metrics->PairFailed(worker->address, WorkerRoleName(worker->role));
      return requests_.OnPairFailed(*worker, frame.pair_failed(), now);
    case worker::v1::SessionResponse::FRAME_NOT_SET:
      LoseWorker(worker, absl::InvalidArgumentError("frame of an unknown kind"), now);
  }
}

void RouterCore::OnHello(Worker* worker, const worker::v1::WorkerHello& hello, TimePoint now) {
  auto refusals = registry_.Greet(worker, hello);
  if (!refusals.ok()) return LoseWorker(worker, refusals.status(), now);
  const absl::string_view role = WorkerRoleName(worker->role);
  for (const WorkerRegistry::Refusal& refusal : *refusals) {
    LogError("model of a worker refused", {{"worker", worker->address},
                                           {"model", refusal.model},
                                           {"status", refusal.status.ToString()}});
    options_.metrics->WorkerModelRefused(worker->address, role);
  }
  for (const auto& [name, model] : worker->models) {
    loader_.RetryFailed(registry_.models().at(name).tokenizer_key);
  }
  LogInfo("worker connected", {{"worker", worker->address},
                               {"role", role},
                               {"instance", worker->instance_id},
                               {"models", worker->models.size()}});
  options_.metrics->WorkerUp(worker->address, role, true);
  models_changed_ = true;
}

void RouterCore::OnDraining(Worker* worker) {
  LogInfo("worker is draining", {{"worker", worker->address}});
  worker->draining = true;
  options_.metrics->WorkerUp(worker->address, WorkerRoleName(worker->role), false);
  models_changed_ = true;
}

void RouterCore::LoseWorker(Worker* worker, const absl::Status& reason, TimePoint now) {
  worker->session->Close(reason);
  const absl::string_view role = worker->greeted ? WorkerRoleName(worker->role) : "unknown";
  if (worker->greeted) {
    LogWarning("worker lost", {{"worker", worker->address},
                               {"role", role},
                               {"reason", reason.ToString()},
                               {"sequences", worker->sequences.size()}});
    options_.metrics->WorkerUp(worker->address, role, false);
  }
  if (!worker->draining && !stopping_) options_.metrics->WorkerSessionFailed(worker->address, role);
  requests_.OnWorkerLost(worker, now);
  loader_.OnWorkerLost(worker->session_id);
  registry_.Remove(worker->session_id);
  models_changed_ = true;
}

void RouterCore::LoseBroken(TimePoint now) {
  // Losing one may break others (their cancels do not fit), hence the loop; each round removes one.
  while (true) {
    auto& workers = registry_.workers();
    const auto it = std::find_if(workers.begin(), workers.end(),
                                 [](const auto& entry) { return entry.second->broken; });
    if (it == workers.end()) return;
    LoseWorker(it->second.get(), absl::UnavailableError("the worker does not take frames"), now);
  }
}

void RouterCore::TendSessions(TimePoint now) {
  std::vector<Worker*> silent;
  for (auto& [id, worker] : registry_.workers()) {
    if (now - worker->last_heard >= limits_.heartbeat_limit) {
      silent.push_back(worker.get());
      continue;
    }
    if (now < worker->next_heartbeat || worker->broken) continue;
    worker->next_heartbeat = SaturatingAdd(now, limits_.heartbeat_interval);
    worker::v1::SessionRequest frame;
    frame.mutable_heartbeat()->set_sequence_number(++worker->heartbeats_sent);
    if (!worker->session->Send(std::move(frame))) worker->broken = true;
  }
  for (Worker* worker : silent) {
    LoseWorker(worker,
               absl::UnavailableError(
                   absl::StrCat("no frame for ", ToSeconds(now - worker->last_heard), " s")),
               now);
  }
}

void RouterCore::PublishModels() {
  models_changed_ = false;
  for (const auto& [name, model] : registry_.models()) {
    const ModelDefinition& definition = model.definition;
    ServedModel served;
    served.name = definition.name;
    served.revision = definition.revision;
    served.context_tokens_max = definition.context_tokens_max;
    served.vocabulary_size = definition.vocabulary_size;
    served.eos_token_ids = definition.eos_token_ids;
    served.defaults = definition.defaults;
    served.codec = loader_.codec(model.tokenizer_key);
    // The largest pool that a whole sequence can live in: decode and combined workers'.
    for (const SessionId id : model.workers) {
      const Worker* worker = registry_.Find(id);
      if (worker->role == WorkerRole::kPrefill) continue;
      const WorkerModel& pool = worker->models.at(name);
      served.kv_tokens_max =
          std::max(served.kv_tokens_max, static_cast<int64_t>(pool.block_tokens) * pool.num_blocks);
    }
    served.ready = registry_.CanServe(model, &served.unready_reason);
    if (served.ready && served.codec == nullptr) {
      served.ready = false;
      served.unready_reason = loader_.Reason(model.tokenizer_key);
    }
    options_.catalog->Publish(std::move(served));
  }
}

}  // namespace baton::router
