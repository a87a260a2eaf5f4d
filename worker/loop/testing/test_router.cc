#include "worker/loop/testing/test_router.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::worker {

std::vector<int32_t> TestRouter::State::TokenIds(uint32_t first) const {
  std::vector<int32_t> out;
  for (const auto& [index, token] : tokens) {
    if (index != first + out.size()) return {};
    out.push_back(token.token_id);
  }
  return out;
}

void TestRouter::Connect(EngineLoop* prefill, EngineLoop* decode) {
  MutexLock lock(mutex_);
  prefill_ = prefill;
  decode_ = decode;
}

RequestId TestRouter::Submit(const Request& request) {
  MutexLock lock(mutex_);
  const RequestId id(next_id_++);
  State& state = states_[id];
  state.request = request;
  SendStart(id, state, request.disaggregated ? StartMode::kReserve : StartMode::kGenerate);
  return id;
}

void TestRouter::SendStart(RequestId id, State& state, StartMode mode) {
  const Request& request = state.request;
  StartSequence start;
  start.key = Key(id);
  start.mode = mode;
  start.model = std::string(kTestLoopModel);
  start.token_ids = request.prompt;
  start.num_prompt_tokens = request.num_prompt_tokens > 0
                                ? request.num_prompt_tokens
                                : static_cast<uint32_t>(request.prompt.size());
  start.sampling.logprobs = request.logprobs;
  start.max_tokens = request.max_tokens;
  start.eos_token_ids = request.eos;
  start.stop_token_ids = request.stop;
  start.deadline = request.deadline;
  // A new name for each try, as routers mint them.
  start.transfer_id = TransferId(id.value * 100000 + state.reservations);
  start.transfer_address = "d:1";
  start.decode_instance_id = 0x7001;
  start.initial_credits = request.credits;
  EngineLoop* loop = mode == StartMode::kPrefill ? prefill_ : decode_;
  if (mode == StartMode::kPrefill) state.prefill_started = true;
  const absl::Status queued = loop->Enqueue(std::move(start));
  if (queued.ok()) return;
  SequenceEnd end;
  end.key = Key(id);
  end.status = queued;
  OnEnd(mode == StartMode::kPrefill ? Side::kPrefill : Side::kDecode, end);
}

void TestRouter::Retry() {
  MutexLock lock(mutex_);
  std::vector<RequestId> ids = std::exchange(to_retry_, {});
  for (RequestId id : ids) {
    State& state = states_.at(id);
    if (state.reason.has_value()) continue;
    state.decode_end.reset();
    ++state.reservations;
    SendStart(id, state, StartMode::kReserve);
  }
}

void TestRouter::SendCancel(RequestId id, State& state) {
  if (std::exchange(state.cancel_sent, true)) return;
  if (!state.decode_end.has_value()) (void)decode_->Enqueue(CancelSequence{Key(id)});
  if (state.prefill_started && !state.prefill_end.has_value()) {
    (void)prefill_->Enqueue(CancelSequence{Key(id)});
  }
}

void TestRouter::Cancel(RequestId id) {
  MutexLock lock(mutex_);
  State& state = states_.at(id);
  Conclude(state, EndReason::kCancelled, absl::OkStatus());
  SendCancel(id, state);
}

void TestRouter::Grant(RequestId id, uint32_t credits) {
  MutexLock lock(mutex_);
  (void)decode_->Enqueue(GrantCredits{Key(id), credits});
}

void TestRouter::EndSession() {
  MutexLock lock(mutex_);
  session_ended_ = true;
  CHECK(decode_->Enqueue(SessionEnded{kTestSession}).ok());
  if (prefill_ == nullptr) return;
  CHECK(prefill_->Enqueue(SessionEnded{kTestSession}).ok());
}

void TestRouter::Conclude(State& state, EndReason reason, const absl::Status& status) {
  if (state.reason.has_value()) return;
  state.reason = reason;
  state.status = status;
}

TestRouter::State* TestRouter::Find(const SequenceKey& key) {
  const auto it = states_.find(key.request_id);
  if (it == states_.end() || key.session != kTestSession) {
    Violate(key, "unknown sequence");
    return nullptr;
  }
  return &it->second;
}

void TestRouter::Violate(const SequenceKey& key, const std::string& what) {
  violations_.push_back(absl::StrCat("request ", key.request_id.value, ": ", what));
}

void TestRouter::OnOutput(Side side, const StepOutput& output) {
  MutexLock lock(mutex_);
  ++outputs_;
  if (output.model != kTestLoopModel) violations_.push_back("output of another model");
  for (const Reserved& reserved : output.reserved) {
    State* state = Find(reserved.key);
    if (state == nullptr) continue;
    if (state->decode_end.has_value() || state->reserved) Violate(reserved.key, "late Reserved");
    state->reserved = true;
    if (!state->reason.has_value()) {
      SendStart(reserved.key.request_id, *state, StartMode::kPrefill);
    }
  }
  for (const TokenOutput& token : output.tokens) OnToken(side, token);
  for (const SequenceEnd& end : output.ends) OnEnd(side, end);
  changed_.SignalAll();
}

void TestRouter::OnToken(Side side, const TokenOutput& token) {
  State* state = Find(token.key);
  if (state == nullptr) return;
  const auto& end = side == Side::kPrefill ? state->prefill_end : state->decode_end;
  if (end.has_value()) Violate(token.key, "a token after the end");
  if (session_ended_) return;
  if (!state->tokens.emplace(token.index, token.token).second) {
    Violate(token.key, absl::StrCat("token ", token.index, " twice"));
  }
}

void TestRouter::OnEnd(Side side, const SequenceEnd& end) {
  State* state = Find(end.key);
  if (state == nullptr) return;
  auto& slot = side == Side::kPrefill ? state->prefill_end : state->decode_end;
  if (slot.has_value()) {
    // A cancel that crossed the end is answered as for an unknown sequence.
    if (!state->cancel_sent || end.reason != EndReason::kCancelled) {
      Violate(end.key, "ended twice");
    }
    return;
  }
  slot = end;
  if (side == Side::kDecode && end.retryable && !state->reserved && !state->reason.has_value()) {
    to_retry_.push_back(end.key.request_id);
    return;
  }
  if (end.reason == EndReason::kHandedOver) {
    state->kv_bytes = end.kv_bytes;
    return;
  }
  Conclude(*state, end.reason, end.status);
  // D can only have come to a good end with the KV: P's end is on its way.
  if (side == Side::kDecode && end.reason != EndReason::kError) return;
  SendCancel(end.key.request_id, *state);
}

void TestRouter::OnPair(const PairFailed& failure) {
  MutexLock lock(mutex_);
  pair_failures_.push_back(failure);
}

TestRouter::State TestRouter::state(RequestId id) const {
  MutexLock lock(mutex_);
  return states_.at(id);
}

bool TestRouter::AllOver() const {
  MutexLock lock(mutex_);
  return std::all_of(states_.begin(), states_.end(),
                     [](const auto& entry) { return entry.second.over(); });
}

bool TestRouter::AwaitAllOver(Duration limit) {
  const TimePoint give_up = Clock::Real()->Now() + limit;
  while (!AllOver()) {
    if (Clock::Real()->Now() >= give_up) return false;
    Retry();
    MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, std::chrono::milliseconds(1));
  }
  return true;
}

bool TestRouter::Await(RequestId id, Duration limit, bool (*condition)(const State&)) {
  const TimePoint give_up = Clock::Real()->Now() + limit;
  while (!condition(state(id))) {
    if (Clock::Real()->Now() >= give_up) return false;
    Retry();
    MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<std::string> TestRouter::violations() const {
  MutexLock lock(mutex_);
  return violations_;
}

std::vector<PairFailed> TestRouter::pair_failures() const {
  MutexLock lock(mutex_);
  return pair_failures_;
}

uint64_t TestRouter::outputs() const {
  MutexLock lock(mutex_);
  return outputs_;
}

}  // namespace baton::worker
