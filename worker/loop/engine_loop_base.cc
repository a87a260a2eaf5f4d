#include "worker/loop/engine_loop_base.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

// A step is waited for in slices, so that cancels, deadlines and new starts are seen meanwhile.
constexpr Duration kStepSlice = std::chrono::milliseconds(2);
// While its layers are of interest they are asked for this often a layer, but not more often than
// this: on a GPU a layer takes a millisecond, on a CPU it may take a hundred.
constexpr int kQueriesALayer = 16;
constexpr Duration kLayerSliceMin = std::chrono::microseconds(100);
// The clock may be one that only moves when told to: with sequences there, look at it this often.
constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr Duration kIdleTick = std::chrono::seconds(1);

SequenceEngine::Options EngineOptions(const LoopOptions& options,
                                      int32_t report_kv_layers_tokens_min) {
  CHECK(options.executor != nullptr);
  CHECK(options.sink != nullptr);
  CHECK(options.clock != nullptr);
  CHECK(options.kv.base != nullptr || options.kv.block_bytes == 0);
  return {.executor = options.executor,
          .num_blocks = options.kv.num_blocks,
          .block_tokens = options.kv.block_tokens,
          .tokens_per_step_max = options.limits.tokens_per_step_max,
          .sequences_max = options.limits.running_sequences_max,
          .growth_watermark_blocks = options.limits.growth_watermark_blocks,
          .reserved_blocks_max = options.limits.reserved_blocks_max,
          .passes_max = options.limits.passes_max,
          .paused_hold = options.limits.paused_hold,
          .report_kv_layers_tokens_min = report_kv_layers_tokens_min};
}

}  // namespace

EngineLoopBase::EngineLoopBase(const LoopOptions& options, int32_t report_kv_layers_tokens_min)
    : options_(options),
      reports_kv_layers_(report_kv_layers_tokens_min > 0),
      inbox_(options.limits.starts_queued_max),
      engine_(EngineOptions(options, report_kv_layers_tokens_min)) {
  load_.model = options.model;
  load_.total_blocks = load_.free_blocks = static_cast<uint32_t>(options.kv.num_blocks);
}

EngineLoopBase::~EngineLoopBase() { CHECK(!thread_.joinable()) << "destroyed before Stop()"; }

absl::Status EngineLoopBase::Enqueue(Command command) { return inbox_.Push(std::move(command)); }

bool EngineLoopBase::idle() const { return inbox_.idle(); }

LoopLoad EngineLoopBase::load() const {
  const uint32_t queued = inbox_.num_starts();
  const TimePoint now = Now();
  MutexLock lock(load_mutex_);
  LoopLoad load = load_;
  load.waiting_sequences += queued;
  if (stalled_since_ != kNever) load.stalled_seconds = ToSeconds(now - stalled_since_);
  return load;
}

void EngineLoopBase::StartThread() {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void EngineLoopBase::Stop() {
  MutexLock lock(stop_mutex_);
  if (stopped_) return;
  stopped_ = true;
  inbox_.RefuseCommands("the worker has stopped");
  stopping_.store(true);
  inbox_.Wake();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    FinishWork();
  }
}

void EngineLoopBase::Run() {
  while (!stopping_.load()) Turn(kIdleTick);
  FinishWork();
}

void EngineLoopBase::FinishWork() {
  HandleContents(inbox_.TakeAll(Duration::zero()));
  EndAll(absl::UnavailableError("the worker has stopped"));
  Flush();
  // Steps and transfers that are under way still use the blocks.
  const TimePoint give_up = SaturatingAdd(Clock::Real()->Now(), options_.limits.stop_limit);
  while (engine_.steps_in_flight() > 0 || transfers_left()) {
    if (Clock::Real()->Now() >= give_up) {
      LogError("engine loop stopped with work under way",
               {{"model", options_.model}, {"steps", engine_.steps_in_flight()}});
      break;
    }
    HandleContents(inbox_.TakeAll(engine_.steps_in_flight() > 0 ? Duration::zero() : kTick));
    if (engine_.steps_in_flight() == 0) continue;
    if (!engine_.Collect(kTick).ok()) engine_.AbandonSteps();
  }
  Flush();
  Publish(/*progressed=*/false);
  inbox_.SetLoopIdle(LoopIdle());
}

bool EngineLoopBase::LoopIdle() const {
  return actives_.empty() && engine_.steps_in_flight() == 0 && !transfers_left();
}

Duration EngineLoopBase::WaitLimit(Duration wait_max) const {
  if (busy_ || engine_.steps_in_flight() > 0) return Duration::zero();
  if (actives_.empty() && !transfers_left()) return wait_max;
  return std::min(wait_max, kTick);
}

void EngineLoopBase::Turn(Duration wait_max) {
  HandleContents(inbox_.TakeAll(WaitLimit(wait_max)));
  ExpireDeadlines();
  // Before the step: if it never returns, load() shows for how long.
  Publish(/*progressed=*/false);
  const uint64_t steps_before = engine_.counters().steps;
  busy_ = false;
  if (!broken_) Step(std::min(wait_max, kStepSlice));
  Flush();
  Publish(engine_.counters().steps != steps_before);
  inbox_.SetLoopIdle(LoopIdle());
}

void EngineLoopBase::HandleContents(InboxContents contents) {
  if (contents.drain) draining_ = true;
  // First: they free blocks, and none can be about a start that was taken with them.
  for (const TransferEvent& event : contents.transfer_events) OnTransferEvent(event);
  for (StartSequence& start : contents.starts) HandleStart(std::move(start));
  for (const auto& [key, credits] : contents.credits) {
    Active* active = FindActive(key);
    if (active == nullptr || !active->in_engine) continue;
    const uint64_t bounded = std::min(credits, static_cast<uint64_t>(kUnlimitedCredits));
    engine_.GrantCredits(active->id, static_cast<int64_t>(bounded), Now());
  }
  for (const SequenceKey& key : contents.cancels) {
    if (Active* active = FindActive(key)) {
      End(*active, EndReason::kCancelled);
    } else {
      SayEnd(key, EndReason::kCancelled, absl::OkStatus(), 0);
    }
  }
  for (RouterSessionId session : contents.ended_sessions) EndSession(session);
}

void EngineLoopBase::HandleStart(StartSequence start) {
  if (actives_.contains(start.key)) {
    // Any answer would be taken for one to the sequence that is running.
    LogWarning("start of a sequence that is running: ignored",
               {{"request", start.key.request_id.value}, {"attempt", start.key.attempt}});
    return;
  }
  absl::Status refusal;
  if (broken_ || stopping_.load()) {
    refusal = absl::UnavailableError("the engine has stopped");
  } else if (draining_) {
    refusal = absl::UnavailableError("the worker is draining");
  } else if (start.model != options_.model) {
    refusal = absl::NotFoundError(
        absl::StrCat("model: '", start.model, "' is not '", options_.model, "'"));
  } else if (start.deadline <= Now()) {
    refusal = absl::DeadlineExceededError("the deadline passed before the worker could start");
  }
  if (!refusal.ok()) {
    Refuse(start.key, refusal);
    return;
  }
  OnStart(std::move(start));
}

void EngineLoopBase::EndSession(RouterSessionId session) {
  const SequenceKey first = {.session = session, .request_id = RequestId(0), .attempt = 0};
  auto it = actives_.lower_bound(first);
  while (it != actives_.end() && it->first.session == session) {
    Active& active = it->second;
    ++it;
    Forget(active);
  }
  outputs_.erase(session);
}

void EngineLoopBase::ExpireDeadlines() {
  const TimePoint now = Now();
  auto it = actives_.begin();
  while (it != actives_.end()) {
    Active& active = it->second;
    ++it;
    if (active.deadline <= now) {
      EndWithError(active, absl::DeadlineExceededError("the deadline has passed"));
    } else if (active.failure_at <= now) {
      EndWithError(active, absl::Status(*active.failure));
    }
  }
}

void EngineLoopBase::Step(Duration wait_max) {
  bool launched = false;
  if (!engine_.pipeline_full()) {
    absl::StatusOr<bool> result = engine_.Launch(Now());
    if (!result.ok()) {
      Break(result.status());
      return;
    }
    launched = *result;
    busy_ = launched;
  }
  if (engine_.steps_in_flight() == 0 || (launched && !engine_.pipeline_full())) return;
  absl::StatusOr<std::optional<StepOutcome>> outcome = Collect(wait_max);
  if (!outcome.ok()) {
    Break(outcome.status());
    return;
  }
  if (!outcome->has_value()) return;
  busy_ = true;
  ApplyOutcome(**outcome);
}

template <typename Visit>
void EngineLoopBase::ForEachOfOldestStep(Visit visit) {
  for (const StepEntry& entry : engine_.oldest_step()) {
    const auto it = keys_.find(entry.id);
    if (it != keys_.end()) visit(actives_.at(it->second), entry);
  }
}

bool EngineLoopBase::WatchesLayers() {
  if (!reports_kv_layers_) return false;
  bool watches = false;
  ForEachOfOldestStep([&](const Active& active, const StepEntry& entry) {
    watches |= WantsLayers(active, entry.start_position + entry.num_tokens, entry.sample);
  });
  return watches;
}

void EngineLoopBase::TellLayers() {
  const int32_t layers = engine_.KvLayersReady();
  if (layers <= layers_told_) return;
  layers_told_ = layers;
  ForEachOfOldestStep([&](Active& active, const StepEntry& entry) {
    const int32_t num_computed = entry.start_position + entry.num_tokens;
    if (WantsLayers(active, num_computed, entry.sample)) {
      OnLayersReady(active, num_computed, entry.sample, layers);
    }
  });
}

Duration EngineLoopBase::LayerSlice() const {
  const Duration elapsed = Clock::Real()->Now() - oldest_step_since_;
  return std::max<Duration>(elapsed / (kQueriesALayer * std::max(1, layers_told_)), kLayerSliceMin);
}

absl::StatusOr<std::optional<StepOutcome>> EngineLoopBase::Collect(Duration wait_max) {
  const TimePoint now = Clock::Real()->Now();
  const TimePoint give_up = SaturatingAdd(now, wait_max);
  oldest_step_since_ = std::min(oldest_step_since_, now);
  const bool watches = WatchesLayers();
  while (true) {
    absl::StatusOr<std::optional<StepOutcome>> outcome =
        engine_.Collect(watches ? std::min(wait_max, LayerSlice()) : wait_max);
    if (!outcome.ok() || outcome->has_value()) {
      layers_told_ = 0;
      oldest_step_since_ = kNever;
      return outcome;
    }
    if (watches) TellLayers();
    if (!watches || Clock::Real()->Now() >= give_up) return outcome;
  }
}

void EngineLoopBase::ApplyOutcome(const StepOutcome& outcome) {
  for (const Computed& computed : outcome.computed) {
    const auto it = keys_.find(computed.id);
    if (it != keys_.end()) OnComputed(actives_.at(it->second), computed.num_computed);
  }
  for (const Sampled& sampled : outcome.sampled) {
    const auto it = keys_.find(sampled.id);
    if (it == keys_.end()) continue;
    Active& active = actives_.at(it->second);
    if (!sampled.token.finite) {
      ++nonfinite_logits_;
      EndWithError(active,
                   absl::InternalError(absl::StrCat("the model's logits for token ", sampled.index,
                                                    " hold a NaN or an infinity")));
      continue;
    }
    ++tokens_generated_;
    OnSampled(active, sampled);
  }
}

void EngineLoopBase::Break(const absl::Status& status) {
  LogError("the engine has failed; the model is not served any more",
           {{"model", options_.model}, {"status", status.ToString()}});
  broken_ = true;
  engine_.AbandonSteps();
  inbox_.RefuseCommands(absl::StrCat("the engine has failed: ", status.message()));
  EndAll(absl::UnavailableError(absl::StrCat("the engine has failed: ", status.message())));
  if (options_.on_broken) options_.on_broken(status);
}

void EngineLoopBase::EndAll(const absl::Status& status) {
  while (!actives_.empty()) EndWithError(actives_.begin()->second, status);
}

SequenceSpec EngineLoopBase::MakeSpec(StartSequence& start, int64_t credits) const {
  constexpr uint32_t kMax = std::numeric_limits<int32_t>::max();
  SequenceSpec spec;
  spec.num_prompt_tokens = static_cast<int32_t>(std::min(start.num_prompt_tokens, kMax));
  spec.max_tokens = static_cast<int32_t>(std::min(start.max_tokens, kMax));
  spec.token_ids = std::move(start.token_ids);
  spec.sampling = start.sampling;
  spec.eos_token_ids = std::move(start.eos_token_ids);
  spec.stop_token_ids = std::move(start.stop_token_ids);
  spec.credits = credits;
  return spec;
}

EngineLoopBase::Active& EngineLoopBase::AddActive(const StartSequence& start, SequenceId id) {
  Active& active = actives_[start.key];
  active.key = start.key;
  active.id = id;
  active.deadline = start.deadline;
  active.max_tokens = start.max_tokens;
  active.mode = start.mode;
  keys_[id] = start.key;
  return active;
}

std::vector<BlockId> EngineLoopBase::DetachFromEngine(Active& active) {
  CHECK(active.in_engine);
  active.in_engine = false;
  keys_.erase(active.id);
  return engine_.Detach(active.id);
}

EngineLoopBase::Active* EngineLoopBase::FindActive(const SequenceKey& key) {
  const auto it = actives_.find(key);
  return it == actives_.end() ? nullptr : &it->second;
}

bool EngineLoopBase::RefusedAsFull(const StartSequence& start) {
  uint32_t waiting = 0;
  for (const auto& [id, sequence] : engine_.sequences()) {
    waiting += sequence.phase == SequencePhase::kWaiting ? 1 : 0;
  }
  if (waiting < options_.limits.waiting_sequences_max) return false;
  Refuse(start.key, absl::ResourceExhaustedError(absl::StrCat(waiting, " sequences wait already")));
  return true;
}

void EngineLoopBase::Refuse(const SequenceKey& key, const absl::Status& status) {
  SayEnd(key, EndReason::kError, status, 0);
}

void EngineLoopBase::SayEnd(const SequenceKey& key, EndReason reason, const absl::Status& status,
                            uint64_t kv_bytes) {
  SequenceEnd end;
  end.key = key;
  end.reason = reason;
  end.status = OwnCopy(status);
  end.retryable = absl::IsResourceExhausted(status);
  end.kv_bytes = kv_bytes;
  OutputOf(key.session).ends.push_back(std::move(end));
}

void EngineLoopBase::Say(Reserved reserved) {
  OutputOf(reserved.key.session).reserved.push_back(reserved);
}

void EngineLoopBase::Say(TokenOutput token) {
  OutputOf(token.key.session).tokens.push_back(std::move(token));
}

void EngineLoopBase::SayPairFailed(const TransferEvent& event) {
  options_.sink->OnPairFailed({.peer_instance_id = event.peer.instance_id,
                               .peer_address = event.peer.control_address,
                               .reason = std::string(event.status.message())});
}

void EngineLoopBase::End(Active& active, EndReason reason, const absl::Status& status,
                         uint64_t kv_bytes) {
  CHECK_EQ(reason == EndReason::kError, !status.ok());
  SayEnd(active.key, reason, status, std::max(kv_bytes, active.kv_bytes));
  Forget(active);
}

void EngineLoopBase::EndAfterTransferFailure(Active& active, const absl::Status& status) {
  if (active.deadline <= Now()) {
    EndWithError(active, absl::DeadlineExceededError("the deadline has passed"));
    return;
  }
  const absl::Status failure =
      absl::UnavailableError(absl::StrCat("KV hand-over: ", status.message()));
  if (!absl::IsAborted(status)) {
    EndWithError(active, failure);
    return;
  }
  LetGo(active);
  active.failure = failure;
  active.failure_at = SaturatingAdd(Now(), options_.limits.peer_word_limit);
}

void EngineLoopBase::LetGo(Active& active) {
  OnEnding(active);
  if (!active.in_engine) return;
  active.in_engine = false;
  keys_.erase(active.id);
  engine_.Remove(active.id);
}

void EngineLoopBase::Forget(Active& active) {
  LetGo(active);
  actives_.erase(SequenceKey(active.key));
}

EndReason EngineLoopBase::ToEndReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return EndReason::kEos;
    case FinishReason::kStopToken:
      return EndReason::kStopToken;
    case FinishReason::kLength:
      return EndReason::kLength;
  }
  CHECK(false) << "unknown finish reason " << static_cast<int>(reason);
  return EndReason::kError;
}

StepOutput& EngineLoopBase::OutputOf(RouterSessionId session) {
  StepOutput& output = outputs_[session];
  if (output.model.empty()) {
    output.session = session;
    output.model = options_.model;
  }
  return output;
}

void EngineLoopBase::Flush() {
  for (auto& [session, output] : outputs_) options_.sink->OnStepOutput(std::move(output));
  outputs_.clear();
}

void EngineLoopBase::Publish(bool progressed) {
  LoopLoad load;
  load.model = options_.model;
  for (const auto& [id, sequence] : engine_.sequences()) {
    if (sequence.phase != SequencePhase::kRunning) ++load.waiting_sequences;
    if (sequence.phase == SequencePhase::kAwaitingKv) continue;
    load.queued_prompt_tokens += static_cast<uint64_t>(
        std::max(0, sequence.spec.num_prompt_tokens - sequence.num_scheduled));
  }
  for (const auto& [key, active] : actives_) {
    if (!active.failure.has_value()) ++load.running_sequences;
  }
  load.running_sequences -= load.waiting_sequences;
  const BlockCounts blocks = engine_.pool().counts();
  load.total_blocks = static_cast<uint32_t>(blocks.total);
  load.quarantined_blocks = static_cast<uint32_t>(blocks.quarantined);
  load.in_flight_blocks = static_cast<uint32_t>(blocks.in_flight);
  load.leased_blocks = static_cast<uint32_t>(blocks.leased);
  load.owned_blocks = static_cast<uint32_t>(blocks.owned);
  load.cached_blocks = static_cast<uint32_t>(blocks.cached);
  load.free_blocks = static_cast<uint32_t>(blocks.free);
  load.steps = engine_.counters().steps;
  load.prompt_tokens_computed = engine_.counters().prompt_tokens;
  load.preemptions = engine_.counters().preemptions;
  load.tokens_generated = tokens_generated_;
  load.nonfinite_logits = nonfinite_logits_;
  const ExecutorStats executor = options_.executor->executor_stats();
  load.kernel_launches = executor.kernel_launches;
  load.graph_launches = executor.graph_launches;
  const bool has_work = !broken_ && engine_.has_work();
  const TimePoint now = Now();
  {
    MutexLock lock(load_mutex_);
    load_ = std::move(load);
    if (!has_work) {
      stalled_since_ = kNever;
    } else if (progressed || stalled_since_ == kNever) {
      stalled_since_ = now;
    }
  }
}

}  // namespace baton::worker
