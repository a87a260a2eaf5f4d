#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/rpc/error_details.h"
#include "router/core/request_table.h"

// The part of RequestTable that handles what workers answer: tokens, ends and losses.
namespace baton::router {
namespace {

FinishKind KindOf(worker::v1::EndReason reason) {
  switch (reason) {
    case worker::v1::END_REASON_EOS:
      return FinishKind::kEos;
    case worker::v1::END_REASON_STOP_TOKEN:
      return FinishKind::kStopToken;
    default:
      return FinishKind::kLength;
  }
}

// What a worker's error means for the client. The text is a worker's, but may quote a request.
absl::Status ClientStatus(const worker::v1::SequenceEnd& end, Duration retry_delay) {
  constexpr size_t kMessageBytesMax = 512;
  std::string message = end.message().substr(0, kMessageBytesMax);
  for (char& c : message) {
    if (c < 0x20 || c > 0x7E) c = '?';
  }
  const auto code = static_cast<absl::StatusCode>(end.status_code());
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kAborted:
      return absl::Status(code, message);
    case absl::StatusCode::kResourceExhausted:
      return rpc::ResourceExhaustedError(message, retry_delay);
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kCancelled:
      // The request is right; the worker was the wrong one for it.
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

GeneratedToken ToToken(const worker::v1::TokenOutput& in) {
  GeneratedToken token{.id = in.token_id(), .logprob = in.logprob(), .top = {}};
  const int count = std::min(in.top_token_ids_size(), in.top_logprobs_size());
  token.top.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) token.top.emplace_back(in.top_token_ids(i), in.top_logprobs(i));
  return token;
}

}  // namespace

ActiveRequest* RequestTable::Find(AttemptKey key, const Worker& worker) {
  const auto it = requests_.find(key.request_id);
  if (it == requests_.end()) return nullptr;
  ActiveRequest* request = it->second.get();
  if (request->attempt != key.attempt || request->phase == RequestPhase::kQueued) return nullptr;
  if (request->prefill != worker.session_id && request->decode != worker.session_id) return nullptr;
  return request;
}

void RequestTable::OnStep(Worker* worker, const worker::v1::StepOutput& step, TimePoint now) {
  // Ends first, as far as they are known facts; their consequences follow the step's tokens.
  for (const auto& end : step.ends()) {
    const AttemptKey key{RequestId(end.request_id()), end.attempt()};
    registry_->EndSequence(worker, key);
    if (ActiveRequest* request = Find(key, *worker)) NoteEnd(request, *worker, end);
  }
  std::vector<double> gaps;
  std::vector<RequestId> touched;
  std::string model;
  int64_t accepted = 0;
  for (const auto& token : step.tokens()) {
    const AttemptKey key{RequestId(token.request_id()), token.attempt()};
    ActiveRequest* request = Find(key, *worker);
    if (request == nullptr) continue;
    model = request->model().name;
    if (AcceptToken(request, *worker, token, now, &gaps)) ++accepted;
    if (touched.empty() || touched.back() != key.request_id) touched.push_back(key.request_id);
  }
  for (const RequestId id : touched) {
    const auto it = requests_.find(id);
    if (it == requests_.end()) continue;
    FlushDelta(it->second.get());
    GrantCredits(id);
  }
  for (const auto& end : step.ends()) {
    const AttemptKey key{RequestId(end.request_id()), end.attempt()};
    if (ActiveRequest* request = Find(key, *worker)) ResolveEnd(request, *worker, end, now);
  }
  if (accepted > 0) metrics_->GeneratedTokens(model, accepted);
  if (!gaps.empty()) metrics_->InterTokenLatencies(model, gaps);
}

bool RequestTable::AcceptToken(ActiveRequest* request, const Worker& worker,
                               const worker::v1::TokenOutput& in, TimePoint now,
                               std::vector<double>* gaps) {
  if (in.token_id() < 0 || in.token_id() >= request->model().vocabulary_size) {
    Fail(request, absl::InternalError("a worker sent a token outside the vocabulary"), now);
    return false;
  }
  const bool from_decode =
      request->decode == worker.session_id && request->path == PlacementPath::kHandover;
  if (from_decode) request->decode_started = true;
  if (request->path == PlacementPath::kColocated) {
    // The prompt is done: another one may come.
    if (Worker* combined = registry_->Find(request->decode)) {
      registry_->ReleaseSequenceCredit(combined, request->key());
    }
  }
  const uint32_t index = in.index();
  if (index < request->next_index || request->early.contains(index)) return false;
  if (index > request->next_index) {
    // D's tokens may pass token 0 of P, by as many as D may send ahead.
    if (request->early.size() >= limits_.initial_credits) {
      Fail(request, absl::InternalError("a worker sent tokens with a gap"), now);
      return false;
    }
    request->early.emplace(index, ToToken(in));
    return true;
  }
  if (DeliverToken(request, ToToken(in), now, gaps)) return true;
  while (!request->early.empty() && request->early.begin()->first == request->next_index) {
    GeneratedToken token = std::move(request->early.begin()->second);
    request->early.erase(request->early.begin());
    if (DeliverToken(request, std::move(token), now, gaps)) return true;
  }
  FinishIfComplete(request, now);
  return true;
}

bool RequestTable::DeliverToken(ActiveRequest* request, GeneratedToken token, TimePoint now,
                                std::vector<double>* gaps) {
  if (request->next_index++ == 0) {
    request->first_token_at = now;
    metrics_->TimeToFirstToken(request->model().name, ToSeconds(now - request->admitted.arrival));
  } else {
    gaps->push_back(ToSeconds(now - request->last_token_at));
  }
  request->last_token_at = now;
  const std::optional<OutputFinish> finish =
      request->output->Push(std::move(token), &request->delta);
  if (!finish.has_value()) return false;
  Finish(request, *finish, now);
  return true;
}

// Ends the request when a worker has ended it and no token is missing.
bool RequestTable::FinishIfComplete(ActiveRequest* request, TimePoint now) {
  if (!request->pending_end.has_value() || !request->early.empty()) return false;
  if (request->next_index == 0) return false;
  const OutputFinish finish = request->output->End(*request->pending_end, &request->delta);
  Finish(request, finish, now);
  return true;
}

void RequestTable::FlushDelta(ActiveRequest* request) {
  if (request->delta.empty()) return;
  request->sink->Deliver(std::move(request->delta), Usage(*request));
  request->delta = OutputDelta();
}

UsageCounts RequestTable::Usage(const ActiveRequest& request) const {
  return {.prompt_tokens = static_cast<int64_t>(request.admitted.validated.prompt.size()),
          .completion_tokens = request.output->completion_tokens(),
          .cached_tokens = static_cast<int64_t>(request.cached_tokens)};
}

void RequestTable::NoteEnd(ActiveRequest* request, const Worker& worker,
                           const worker::v1::SequenceEnd& end) {
  if (request->prefill == worker.session_id) request->prefill_open = false;
  if (request->decode == worker.session_id) request->decode_open = false;
  request->cached_tokens = std::max(request->cached_tokens, end.cached_tokens());
  request->kv_bytes = std::max(request->kv_bytes, end.kv_bytes());
}

void RequestTable::ResolveEnd(ActiveRequest* request, const Worker& worker,
                              const worker::v1::SequenceEnd& end, TimePoint now) {
  const bool from_prefill =
      request->path != PlacementPath::kColocated && request->prefill == worker.session_id;
  switch (end.reason()) {
    case worker::v1::END_REASON_HANDED_OVER:
      if (from_prefill && request->next_index > 0) return;
      return Fail(request, absl::InternalError("a worker handed over before the first token"), now);
    case worker::v1::END_REASON_EOS:
    case worker::v1::END_REASON_STOP_TOKEN:
    case worker::v1::END_REASON_LENGTH:
      request->pending_end = KindOf(end.reason());
      if (FinishIfComplete(request, now)) return;
      // Token 0 may still be on its way from P, and only from there.
      if (!from_prefill && request->prefill_open) return;
      return Fail(request, absl::InternalError("a worker ended a sequence with tokens missing"),
                  now);
    default:
      return ResolveErrorEnd(request, worker, end, now);
  }
}

void RequestTable::ResolveErrorEnd(ActiveRequest* request, const Worker& worker,
                                   const worker::v1::SequenceEnd& end, TimePoint now) {
  if (end.reason() != worker::v1::END_REASON_ERROR) {
    return Fail(request, absl::UnavailableError("the worker gave the sequence up"), now);
  }
  const auto code = static_cast<absl::StatusCode>(end.status_code());
  if (!request->has_tokens()) {
    if (code == absl::StatusCode::kResourceExhausted && end.retryable()) {
      return Requeue(request, worker.session_id, now);
    }
    // The start crossed the worker's Draining: it has run nothing.
    if (code == absl::StatusCode::kUnavailable && worker.draining) {
      return Requeue(request, SessionId(), now);
    }
  }
  LogWarning("sequence failed on a worker",
             {{"request", request->id().value},
              {"client_request", request->admitted.validated.client_request_id},
              {"worker", worker.address},
              {"code", absl::StatusCodeToString(code)},
              {"message", end.message()}});
  Fail(request, ClientStatus(end, limits_.retry_delay), now);
}

void RequestTable::OnWorkerLost(Worker* worker, TimePoint now) {
  std::vector<ActiveRequest*> affected;
  for (const auto& [id, request] : requests_) {
    if (request->phase == RequestPhase::kQueued) continue;
    const bool prefill = request->prefill == worker->session_id;
    const bool decode = request->decode == worker->session_id;
    // What has been handed over does not need P any more.
    if (prefill && (request->prefill_open || request->credit_taken) &&
        !(request->decode_started && request->next_index > 0)) {
      affected.push_back(request.get());
    } else if (decode && request->decode_open) {
      affected.push_back(request.get());
    }
  }
  for (ActiveRequest* request : affected) {
    // The lost worker needs no cancel.
    if (request->prefill == worker->session_id) request->prefill_open = false;
    if (request->decode == worker->session_id) request->decode_open = false;
    if (request->phase == RequestPhase::kReserving) {
      Requeue(request, SessionId(), now);
    } else {
      Fail(request, absl::UnavailableError("a worker of the request was lost"), now);
    }
  }
}

void RequestTable::Finish(ActiveRequest* request, const OutputFinish& finish, TimePoint now) {
  // P reports the hand-over in its own time; D's tokens prove that it has happened.
  if (request->decode_started) request->prefill_open = false;
  CancelOnWorkers(request);
  FlushDelta(request);
  RequestFinish out;
  out.finish = finish;
  out.usage = Usage(*request);
  out.seed = request->admitted.seed;
  out.queue_seconds = ToSeconds(request->placed_at - request->admitted.arrival);
  out.time_to_first_token_seconds = ToSeconds(request->first_token_at - request->admitted.arrival);
  out.total_seconds = ToSeconds(now - request->admitted.arrival);
  out.kv_handover_bytes = static_cast<int64_t>(request->kv_bytes);
  metrics_->RequestFinished(request->model().name,
                            finish.kind == FinishKind::kLength ? "length" : "stop",
                            out.usage.completion_tokens);
  request->sink->Finish(out);
  Remove(request);
}

}  // namespace baton::router
