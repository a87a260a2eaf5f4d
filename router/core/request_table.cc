#include "router/core/request_table.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/rpc/error_details.h"

// Admission, the queue, cancelling and time; request_placement.cc starts sequences,
// request_output.cc handles what workers answer.
namespace baton::router {

RequestTable::RequestTable(const RouterLimits& limits, WorkerRegistry* registry,
                           const PlacementPolicy* policy, RouterMetrics* metrics)
    : limits_(limits), registry_(registry), policy_(policy), metrics_(metrics) {}

void RequestTable::Admit(AdmittedRequest admitted, std::shared_ptr<ResponseSink> sink,
                         TimePoint now) {
  if (sink->state().closed) return;
  const std::string& model = admitted.validated.model->name;
  Queue& queue = queues_[model];
  absl::Status refusal;
  if (admitted.deadline <= now) {
    refusal = absl::DeadlineExceededError("deadline exceeded before the request was queued");
  } else if (queue.waiting.size() >= limits_.queue_max) {
    refusal = rpc::ResourceExhaustedError(
        absl::StrCat("the queue of the model is full: ", limits_.queue_max, " requests wait"),
        limits_.retry_delay);
  }
  if (!refusal.ok()) {
    sink->Fail(refusal);
    if (!sink->state().closed) closing_.push_back(std::move(sink));
    return;
  }
  auto request = std::make_unique<ActiveRequest>();
  request->output = std::make_unique<OutputAssembler>(
      admitted.validated.stop, admitted.validated.sampling.logprobs,
      admitted.validated.model->codec->NewDecoder());
  request->admitted = std::move(admitted);
  request->sink = std::move(sink);
  request->admission_number = next_admission_++;
  ActiveRequest* raw = request.get();
  if (raw->admitted.deadline != kNever) deadlines_.emplace(raw->admitted.deadline, raw->id());
  queue.waiting.emplace(raw->admission_number, raw);
  CHECK(requests_.emplace(raw->id(), std::move(request)).second) << "request id minted twice";
  metrics_->RequestAdmitted(model, static_cast<int64_t>(raw->admitted.validated.prompt.size()));
  PublishGauges(model, queue);
}

void RequestTable::Cancel(RequestId id, const absl::Status& status, TimePoint now) {
  const auto it = requests_.find(id);
  if (it != requests_.end()) Fail(it->second.get(), status, now);
}

void RequestTable::EndAll(const absl::Status& status, TimePoint now) {
  while (!requests_.empty()) Fail(requests_.begin()->second.get(), status, now);
}

void RequestTable::GrantCredits(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  ActiveRequest* request = it->second.get();
  if (!request->decode_open) return;
  // Token 0 of a hand-over came from P and used no credit of D.
  uint64_t drained = request->sink->drained_tokens();
  if (request->path == PlacementPath::kHandover && drained > 0) --drained;
  const uint64_t grant = drained - std::min(drained, request->granted_tokens);
  if (grant < std::max<uint64_t>(1, limits_.initial_credits / 4)) return;
  Worker* decode = registry_->Find(request->decode);
  if (decode == nullptr) return;
  request->granted_tokens += grant;
  worker::v1::SessionRequest frame;
  frame.mutable_credits()->set_request_id(id.value);
  frame.mutable_credits()->set_attempt(request->attempt);
  frame.mutable_credits()->set_credits(static_cast<uint32_t>(grant));
  Send(decode, std::move(frame));
}

void RequestTable::OnTimers(TimePoint now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const RequestId id = deadlines_.begin()->second;
    const bool queued = requests_.at(id)->phase == RequestPhase::kQueued;
    Cancel(id,
           absl::DeadlineExceededError(queued ? "deadline exceeded in the queue"
                                              : "deadline exceeded during generation"),
           now);
  }
  for (auto it = failed_pairs_.begin(); it != failed_pairs_.end();) {
    it = it->second <= now ? failed_pairs_.erase(it) : std::next(it);
  }
  for (auto& [model, queue] : queues_) {
    const bool unready = queue.unready_since != kNever &&
                         now >= SaturatingAdd(queue.unready_since, limits_.unready_grace);
    while (!queue.waiting.empty()) {
      ActiveRequest* oldest = queue.waiting.begin()->second;
      if (unready) {
        Fail(oldest, absl::UnavailableError("no healthy worker serves the model"), now);
      } else if (now - oldest->admitted.arrival > limits_.queue_time_max) {
        Fail(oldest,
             rpc::ResourceExhaustedError("no worker had room for the request in time",
                                         limits_.retry_delay),
             now);
      } else {
        break;
      }
    }
  }
}

TimePoint RequestTable::NextDeadline(TimePoint now) const {
  TimePoint next = deadlines_.empty() ? kNever : deadlines_.begin()->first;
  for (const auto& [model, queue] : queues_) {
    if (queue.waiting.empty()) continue;
    if (queue.unready_since != kNever) {
      next = std::min(next, SaturatingAdd(queue.unready_since, limits_.unready_grace));
    } else {
      // Back-offs and failed pairs end at times of their own; a short tick covers them all.
      next = std::min(next, SaturatingAdd(now, limits_.refusal_backoff_min));
    }
  }
  return next;
}

void RequestTable::ScanSinks(TimePoint now) {
  std::vector<ActiveRequest*> stalled;
  for (const auto& [id, request] : requests_) {
    const TimePoint since = request->sink->state().stalled_since;
    if (since != kNever && now - since >= limits_.stall_limit) stalled.push_back(request.get());
  }
  for (ActiveRequest* request : stalled) {
    LogWarning("client reads too slowly, request ended",
               {{"request", request->id().value}, {"model", request->model().name}});
    Fail(request,
         rpc::ResourceExhaustedError("the client has not read its stream for too long",
                                     limits_.retry_delay),
         now);
  }
  // A call that has ended gets as long again to take what is left.
  for (std::shared_ptr<ResponseSink>& sink : closing_) {
    const ResponseSink::State state = sink->state();
    if (!state.closed && state.stalled_since != kNever &&
        now - state.stalled_since >= 2 * limits_.stall_limit) {
      sink->Abort();
    }
    if (state.closed) sink = nullptr;
  }
  std::erase(closing_, nullptr);
}

size_t RequestTable::queued() const {
  size_t total = 0;
  for (const auto& [model, queue] : queues_) total += queue.waiting.size();
  return total;
}

void RequestTable::CancelOnWorkers(ActiveRequest* request) {
  const auto cancel = [&](SessionId session) {
    Worker* worker = registry_->Find(session);
    if (worker == nullptr) return;
    worker::v1::SessionRequest frame;
    frame.mutable_cancel()->set_request_id(request->id().value);
    frame.mutable_cancel()->set_attempt(request->attempt);
    Send(worker, std::move(frame));
  };
  // The worker's account keeps the sequence until it has reported the end.
  if (request->prefill_open) cancel(request->prefill);
  if (request->decode_open) cancel(request->decode);
  request->prefill_open = false;
  request->decode_open = false;
  if (request->credit_taken) {
    request->credit_taken = false;
    if (Worker* worker = registry_->Find(request->prefill)) registry_->ReturnCredit(worker);
  }
}

void RequestTable::Requeue(ActiveRequest* request, SessionId refused_by, TimePoint now) {
  CHECK(!request->has_tokens());
  CancelOnWorkers(request);
  Queue& queue = queues_[request->model().name];
  --queue.running;
  request->phase = RequestPhase::kQueued;
  request->refused_by = refused_by;
  request->pending_end = std::nullopt;
  request->granted_tokens = 0;
  if (refused_by != SessionId()) {
    if (request->first_refused == kNever) request->first_refused = now;
    request->backoff =
        std::clamp(2 * request->backoff, limits_.refusal_backoff_min, limits_.refusal_backoff_max);
    request->not_before = SaturatingAdd(now, request->backoff);
  }
  queue.waiting.emplace(request->admission_number, request);
  PublishGauges(request->model().name, queue);
}

void RequestTable::Fail(ActiveRequest* request, const absl::Status& status, TimePoint now) {
  CancelOnWorkers(request);
  request->sink->Fail(status);
  Remove(request);
}

void RequestTable::Remove(ActiveRequest* request) {
  const std::string model = request->model().name;
  Queue& queue = queues_[model];
  if (request->phase == RequestPhase::kQueued) {
    queue.waiting.erase(request->admission_number);
  } else {
    --queue.running;
  }
  if (request->admitted.deadline != kNever) {
    deadlines_.erase({request->admitted.deadline, request->id()});
  }
  if (!request->sink->state().closed) closing_.push_back(request->sink);
  requests_.erase(request->id());
  PublishGauges(model, queue);
}

void RequestTable::PublishGauges(const std::string& model, const Queue& queue) {
  metrics_->QueuedRequests(model, static_cast<int64_t>(queue.waiting.size()));
  metrics_->RunningRequests(model, static_cast<int64_t>(queue.running));
}

}  // namespace baton::router
