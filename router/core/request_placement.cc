#include <algorithm>
#include <chrono>

#include "common/base/check.h"
#include "router/core/request_table.h"

// The part of RequestTable that takes requests off the queue and starts them on workers.
namespace baton::router {
namespace {

absl::string_view PathName(PlacementPath path) {
  switch (path) {
    case PlacementPath::kHandover:
      return "handover";
    case PlacementPath::kPrefillOnly:
      return "prefill_only";
    case PlacementPath::kColocated:
      return "colocated";
  }
  return "unknown";
}

void FillSampling(const ActiveRequest& request, worker::v1::Sampling* out) {
  const SamplingChoice& in = request.admitted.validated.sampling;
  out->set_temperature(in.temperature);
  out->set_top_k(in.top_k);
  out->set_top_p(in.top_p);
  out->set_min_p(in.min_p);
  out->set_seed(request.admitted.seed);
  out->set_logprobs(in.logprobs);
  out->set_top_logprobs(in.top_logprobs);
}

}  // namespace

void RequestTable::Dispatch(const std::string& model, bool ready, TimePoint now) {
  const auto queue_it = queues_.find(model);
  if (queue_it == queues_.end()) return;
  Queue& queue = queue_it->second;
  if (ready) {
    queue.unready_since = kNever;
  } else {
    if (queue.unready_since == kNever) queue.unready_since = now;
    return;
  }
  if (queue.waiting.empty()) return;
  const WorkerRegistry::Model& served = registry_->models().at(model);
  for (auto it = queue.waiting.begin(); it != queue.waiting.end();) {
    ActiveRequest* request = it->second;
    if (now < request->not_before) {
      if (now - request->first_refused > limits_.overtaking_max) break;
      ++it;
      continue;
    }
    // Fresh for every request: each placement changes the load.
    if (!TryPlace(request, Views(served), now)) break;
    it = queue.waiting.erase(it);
    ++queue.running;
    PublishGauges(model, queue);
  }
}

std::vector<WorkerView> RequestTable::Views(const WorkerRegistry::Model& model) const {
  std::vector<WorkerView> views;
  views.reserve(model.workers.size());
  for (const SessionId id : model.workers) {
    const Worker* worker = registry_->Find(id);
    if (worker->draining || worker->broken) continue;
    if (worker->sequences.size() >= limits_.sequences_per_worker_max) continue;
    const WorkerModel& load = worker->models.at(model.definition.name);
    WorkerView view;
    view.session_id = id;
    view.role = worker->role;
    view.instance_id = worker->instance_id;
    view.credits_free = worker->prefill_credits - worker->credits_in_use;
    view.sequences = std::max(load.waiting_sequences + load.running_sequences,
                              static_cast<uint32_t>(worker->sequences.size()));
    view.queued_prompt_tokens =
        std::max(load.queued_prompt_tokens, worker->prompt_tokens_outstanding);
    view.free_blocks = load.free_blocks;
    view.block_tokens = load.block_tokens;
    view.total_blocks = load.total_blocks;
    views.push_back(view);
  }
  return views;
}

bool RequestTable::TryPlace(ActiveRequest* request, const std::vector<WorkerView>& views,
                            TimePoint now) {
  PlacementQuery query;
  query.prompt_tokens = request->admitted.validated.prompt.size();
  query.single_token = request->admitted.validated.stop.max_tokens == 1;
  query.refused_by = request->refused_by;
  query.tie_breaker = placements_;
  query.pair_allowed = [this, now](uint64_t prefill, uint64_t decode) {
    return PairAllowed(prefill, decode, now);
  };
  const std::optional<Placement> placement = policy_->Choose(query, views);
  if (!placement.has_value()) return false;
  ++placements_;
  ++request->attempt;
  request->path = placement->path;
  request->prefill = placement->prefill;
  request->decode = placement->decode;
  request->decode_started = false;
  request->placed_at = now;
  Worker* prefill = registry_->Find(placement->prefill);
  Worker* decode = registry_->Find(placement->decode);
  switch (placement->path) {
    case PlacementPath::kHandover:
      StartHandover(request, prefill, decode, now);
      break;
    case PlacementPath::kPrefillOnly:
      registry_->TakeCredit(prefill);
      request->credit_taken = true;
      StartPrefill(request, prefill, nullptr, now);
      break;
    case PlacementPath::kColocated:
      StartColocated(request, decode, now);
      break;
  }
  metrics_->RequestPlaced(request->model().name, PathName(placement->path),
                          ToSeconds(now - request->admitted.arrival));
  return true;
}

void RequestTable::StartHandover(ActiveRequest* request, Worker* prefill, Worker* decode,
                                 TimePoint now) {
  registry_->TakeCredit(prefill);
  request->credit_taken = true;
  request->transfer_id =
      TransferId((request->id().value & 0xFFFFFFFF00000000u) | (next_transfer_++ & 0xFFFFFFFFu));
  request->phase = RequestPhase::kReserving;
  registry_->BeginSequence(decode, request->key(), request->admitted.validated.prompt.size(),
                           /*credit_taken=*/false);
  request->decode_open = true;
  worker::v1::SessionRequest frame = MakeStart(*request, worker::v1::START_MODE_RESERVE, now);
  frame.mutable_start()->set_transfer_id(request->transfer_id.value);
  frame.mutable_start()->set_initial_credits(limits_.initial_credits);
  Send(decode, std::move(frame));
}

void RequestTable::StartPrefill(ActiveRequest* request, Worker* prefill, Worker* decode,
                                TimePoint now) {
  request->phase = RequestPhase::kRunning;
  request->credit_taken = false;
  registry_->BeginSequence(prefill, request->key(), request->admitted.validated.prompt.size(),
                           /*credit_taken=*/true);
  request->prefill_open = true;
  worker::v1::SessionRequest frame = MakeStart(
      *request,
      decode == nullptr ? worker::v1::START_MODE_PREFILL_ONLY : worker::v1::START_MODE_PREFILL,
      now);
  if (decode != nullptr) {
    frame.mutable_start()->set_transfer_id(request->transfer_id.value);
    frame.mutable_start()->set_transfer_address(decode->transfer_address);
    frame.mutable_start()->set_decode_instance_id(decode->instance_id);
  }
  Send(prefill, std::move(frame));
}

void RequestTable::StartColocated(ActiveRequest* request, Worker* worker, TimePoint now) {
  request->phase = RequestPhase::kRunning;
  registry_->TakeCredit(worker);
  registry_->BeginSequence(worker, request->key(), request->admitted.validated.prompt.size(),
                           /*credit_taken=*/true);
  request->decode_open = true;
  worker::v1::SessionRequest frame = MakeStart(*request, worker::v1::START_MODE_GENERATE, now);
  frame.mutable_start()->set_initial_credits(limits_.initial_credits);
  Send(worker, std::move(frame));
}

worker::v1::SessionRequest RequestTable::MakeStart(const ActiveRequest& request,
                                                   worker::v1::StartMode mode,
                                                   TimePoint now) const {
  const ValidatedRequest& in = request.admitted.validated;
  worker::v1::SessionRequest frame;
  worker::v1::StartSequence* start = frame.mutable_start();
  start->set_request_id(request.id().value);
  start->set_attempt(request.attempt);
  start->set_mode(mode);
  start->set_model(in.model->name);
  start->set_model_revision(in.model->revision);
  start->mutable_token_ids()->Add(in.prompt.begin(), in.prompt.end());
  start->set_num_prompt_tokens(static_cast<uint32_t>(in.prompt.size()));
  FillSampling(request, start->mutable_sampling());
  start->set_max_tokens(static_cast<uint32_t>(in.stop.max_tokens));
  start->mutable_stop_token_ids()->Add(in.stop.token_ids.begin(), in.stop.token_ids.end());
  start->mutable_eos_token_ids()->Add(in.stop.eos_token_ids.begin(), in.stop.eos_token_ids.end());
  if (request.admitted.deadline != kNever) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(request.admitted.deadline - now);
    start->set_remaining_ms(static_cast<uint64_t>(std::max<int64_t>(1, left.count())));
  }
  return frame;
}

void RequestTable::Send(Worker* worker, worker::v1::SessionRequest frame) {
  // A broken worker is dealt with at the end of the core's round, like one that was lost.
  if (!worker->broken && !worker->session->Send(std::move(frame))) worker->broken = true;
}

void RequestTable::OnReserved(Worker* worker, const worker::v1::Reserved& reserved, TimePoint now) {
  ActiveRequest* request = Find({RequestId(reserved.request_id()), reserved.attempt()}, *worker);
  if (request == nullptr || request->phase != RequestPhase::kReserving) return;
  if (request->decode != worker->session_id) return;
  // P is there: its loss would have taken the request back to the queue.
  Worker* prefill = registry_->Find(request->prefill);
  CHECK(prefill != nullptr);
  StartPrefill(request, prefill, worker, now);
}

bool RequestTable::PairAllowed(uint64_t prefill, uint64_t decode, TimePoint now) const {
  const auto it = failed_pairs_.find({prefill, decode});
  return it == failed_pairs_.end() || it->second <= now;
}

void RequestTable::OnPairFailed(const Worker& worker, const worker::v1::PairFailed& failure,
                                TimePoint now) {
  // More pairs than this cannot be in use; a worker that names others is wrong.
  constexpr size_t kFailedPairsMax = 4096;
  const bool from_prefill = worker.role == WorkerRole::kPrefill;
  const std::pair<uint64_t, uint64_t> pair =
      from_prefill ? std::pair(worker.instance_id, failure.peer_instance_id())
                   : std::pair(failure.peer_instance_id(), worker.instance_id);
  if (failed_pairs_.size() >= kFailedPairsMax && !failed_pairs_.contains(pair)) return;
  failed_pairs_[pair] = SaturatingAdd(now, limits_.pair_backoff);
}

}  // namespace baton::router
