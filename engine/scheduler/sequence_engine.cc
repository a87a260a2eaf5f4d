#include "engine/scheduler/sequence_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "engine/kvcache/block_table.h"

namespace baton {
namespace {

int32_t AtMost(int32_t wanted, int32_t limit) {
  return wanted > 0 ? std::min(wanted, limit) : limit;
}

int32_t OrDefault(int32_t wanted, int32_t fallback) { return wanted > 0 ? wanted : fallback; }

SchedulerLimits MakeLimits(const SequenceEngine::Options& options) {
  CHECK(options.executor != nullptr);
  CHECK_GT(options.num_blocks, 0);
  CHECK_GT(options.block_tokens, 0);
  const StepLimits& step = options.executor->limits();
  SchedulerLimits limits;
  limits.tokens_per_step_max = AtMost(options.tokens_per_step_max, step.tokens_max);
  limits.sequences_max =
      std::min(AtMost(options.sequences_max, step.sequences_max), limits.tokens_per_step_max);
  limits.num_blocks = options.num_blocks;
  limits.block_tokens = options.block_tokens;
  limits.growth_watermark_blocks =
      OrDefault(options.growth_watermark_blocks, std::max(1, options.num_blocks / 64));
  limits.reserved_blocks_max = OrDefault(options.reserved_blocks_max, options.num_blocks / 2);
  limits.passes_max = options.passes_max;
  limits.paused_hold = options.paused_hold;
  return limits;
}

void NoteCredit(Sequence& sequence, TimePoint now) {
  if (sequence.has_credit()) {
    sequence.paused_since = kNever;
  } else if (sequence.paused_since == kNever) {
    sequence.paused_since = now;
  }
}

}  // namespace

SequenceEngine::SequenceEngine(const Options& options)
    : limits_(MakeLimits(options)),
      report_kv_layers_tokens_min_(options.report_kv_layers_tokens_min),
      pool_(options.num_blocks),
      pipeline_(options.executor) {
  const int64_t pool_tokens = int64_t{options.num_blocks} * options.block_tokens + 1;
  context_tokens_max_ = static_cast<int32_t>(
      std::min<int64_t>(options.executor->limits().context_tokens_max, pool_tokens));
}

absl::Status SequenceEngine::Validate(const SequenceSpec& spec) const {
  const int64_t num_tokens = static_cast<int64_t>(spec.token_ids.size());
  if (num_tokens == 0) return absl::InvalidArgumentError("token_ids: the prompt has no token");
  if (spec.num_prompt_tokens <= 0 || spec.num_prompt_tokens > num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_prompt_tokens: ", spec.num_prompt_tokens,
                                                   " with ", num_tokens, " tokens"));
  }
  if (spec.max_tokens <= num_tokens - spec.num_prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens: ", spec.max_tokens, " with ",
                                                   num_tokens - spec.num_prompt_tokens,
                                                   " tokens generated already"));
  }
  if (num_tokens >= context_tokens_max_) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_ids: ", num_tokens, " tokens; at most ", context_tokens_max_ - 1,
                     " leave room for one more in the context and in the KV pool of ",
                     limits_.num_blocks, " blocks of ", limits_.block_tokens, " tokens"));
  }
  return absl::OkStatus();
}

Sequence& SequenceEngine::Insert(SequenceSpec spec) {
  const absl::Status valid = Validate(spec);
  CHECK(valid.ok()) << valid.ToString();
  const SequenceId id(next_id_++);
  Sequence& sequence = sequences_[id];
  sequence.id = id;
  sequence.tokens = std::move(spec.token_ids);
  sequence.spec = std::move(spec);
  sequence.spec.token_ids.clear();
  sequence.credits = sequence.spec.credits;
  sequence.tokens_max = static_cast<int32_t>(
      std::min(int64_t{sequence.spec.num_prompt_tokens} + sequence.spec.max_tokens,
               int64_t{context_tokens_max_}));
  return sequence;
}

SequenceId SequenceEngine::Add(SequenceSpec spec) { return Insert(std::move(spec)).id; }

absl::StatusOr<SequenceId> SequenceEngine::Reserve(SequenceSpec spec, int32_t output_tokens) {
  CHECK_GE(output_tokens, 0);
  const int64_t num_tokens = static_cast<int64_t>(spec.token_ids.size());
  // The last token needs no KV, and nothing beyond the length limit is ever computed.
  const int64_t last =
      std::min(int64_t{spec.num_prompt_tokens} + spec.max_tokens, int64_t{context_tokens_max_}) - 1;
  const int64_t positions = std::max(num_tokens, std::min(num_tokens + output_tokens, last));
  const int32_t need = BlocksForTokens(positions, limits_.block_tokens);
  if (CheckReservation(State(), need, short_of_blocks_) != ReservationAnswer::kFits) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: no room to reserve ", need,
                                                     " blocks now; ", pool_.num_free(), " of ",
                                                     pool_.num_blocks(), " free"));
  }
  Sequence& sequence = Insert(std::move(spec));
  absl::StatusOr<std::vector<BlockId>> blocks = pool_.Allocate(need, sequence.id.value);
  CHECK(blocks.ok()) << blocks.status().ToString();
  sequence.block_table = *std::move(blocks);
  sequence.phase = SequencePhase::kAwaitingKv;
  return sequence.id;
}

std::optional<FinishReason> SequenceEngine::Join(SequenceId id, int32_t token_id) {
  Sequence& sequence = At(id);
  CHECK(sequence.phase == SequencePhase::kAwaitingKv) << "sequence " << id << " awaits no KV";
  sequence.phase = SequencePhase::kRunning;
  sequence.num_scheduled = static_cast<int32_t>(sequence.tokens.size());
  return AppendToken(sequence, token_id);
}

Sequence& SequenceEngine::At(SequenceId id) {
  const auto it = sequences_.find(id);
  CHECK(it != sequences_.end()) << "unknown sequence " << id;
  return it->second;
}

void SequenceEngine::DropBlocks(SequenceId owner, const std::vector<BlockId>& blocks) {
  pool_.DropHolder(blocks, BlockHolder::kSequence, owner.value);
}

void SequenceEngine::Remove(SequenceId id) {
  Sequence& sequence = At(id);
  if (sequence.steps_in_flight > 0) {
    pipeline_.Retire({id, std::move(sequence.block_table)});
  } else {
    DropBlocks(id, sequence.block_table);
  }
  sequences_.erase(id);
}

std::vector<BlockId> SequenceEngine::Detach(SequenceId id) {
  Sequence& sequence = At(id);
  CHECK_EQ(sequence.steps_in_flight, 0);
  std::vector<BlockId> blocks = std::move(sequence.block_table);
  sequences_.erase(id);
  return blocks;
}

void SequenceEngine::GrantCredits(SequenceId id, int64_t credits, TimePoint now) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  Sequence& sequence = it->second;
  sequence.credits = std::min(kUnlimitedCredits, sequence.credits + std::max<int64_t>(credits, 0));
  NoteCredit(sequence, now);
}

void SequenceEngine::SetWired(SequenceId id, bool wired) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second.wired = wired;
}

SchedulerState SequenceEngine::State() const {
  SchedulerState state;
  state.limits = limits_;
  state.free_blocks = pool_.num_free();
  state.sequences.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.finished) state.sequences.push_back(sequence.View());
  }
  return state;
}

bool SequenceEngine::has_work() const {
  if (steps_in_flight() > 0) return true;
  return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& entry) {
    const Sequence& s = entry.second;
    return s.phase != SequencePhase::kAwaitingKv && s.has_credit() && !s.finished;
  });
}

const Sequence* SequenceEngine::Find(SequenceId id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

void SequenceEngine::Preempt(Sequence& sequence) {
  ++counters_.preemptions;
  ++sequence.preemptions;
  sequence.releasing = true;
  if (sequence.steps_in_flight == 0) CompletePreemption(sequence);
}

void SequenceEngine::CompletePreemption(Sequence& sequence) {
  DropBlocks(sequence.id, sequence.block_table);
  sequence.block_table.clear();
  sequence.releasing = false;
  sequence.phase = SequencePhase::kWaiting;
  sequence.num_scheduled = 0;
  sequence.times_passed = 0;
}

void SequenceEngine::CarryOut(const StepPlan& plan) {
  short_of_blocks_ = plan.short_of_blocks;
  for (SequenceId id : plan.preempted) Preempt(At(id));
  for (const BlockGrant& grant : plan.grants) {
    absl::StatusOr<std::vector<BlockId>> blocks = pool_.Allocate(grant.num_blocks, grant.id.value);
    CHECK(blocks.ok()) << "the planner gave out blocks that the pool has not: "
                       << blocks.status().ToString();
    std::vector<BlockId>& table = At(grant.id).block_table;
    table.insert(table.end(), blocks->begin(), blocks->end());
  }
  for (SequenceId id : plan.passed) ++At(id).times_passed;
  for (SequenceId id : plan.admitted) {
    Sequence& sequence = At(id);
    sequence.phase = SequencePhase::kRunning;
    sequence.times_passed = 0;
  }
}

StepBatch SequenceEngine::MakeBatch(const StepPlan& plan) const {
  StepBatch batch;
  batch.sequences.reserve(plan.entries.size());
  for (const StepEntry& entry : plan.entries) {
    const Sequence& sequence = sequences_.at(entry.id);
    batch.report_kv_layers |=
        report_kv_layers_tokens_min_ > 0 && entry.num_tokens >= report_kv_layers_tokens_min_;
    SequenceStep step;
    step.start_position = entry.start_position;
    const int32_t end = entry.start_position + entry.num_tokens;
    if (end > static_cast<int32_t>(sequence.tokens.size())) {
      // The token is the sample of the one step in flight.
      CHECK_EQ(entry.num_tokens, 1);
      CHECK_EQ(sequence.pending_samples, 1);
      step.token_ids = {0};
      step.from_previous_step = true;
      step.previous_sample = sequence.pending_sample_index;
    } else {
      step.token_ids.assign(sequence.tokens.begin() + entry.start_position,
                            sequence.tokens.begin() + end);
    }
    const int32_t num_blocks = BlocksForTokens(end, limits_.block_tokens);
    CHECK_LE(num_blocks, static_cast<int32_t>(sequence.block_table.size()));
    step.block_table.assign(sequence.block_table.begin(),
                            sequence.block_table.begin() + num_blocks);
    step.sample = entry.sample;
    step.sampling = sequence.spec.sampling;
    batch.sequences.push_back(std::move(step));
  }
  return batch;
}

void SequenceEngine::Account(const StepPlan& plan, TimePoint now) {
  int32_t samples = 0;
  for (const StepEntry& entry : plan.entries) {
    Sequence& sequence = At(entry.id);
    const int32_t end = entry.start_position + entry.num_tokens;
    counters_.prompt_tokens +=
        std::max(0, std::min(end, sequence.spec.num_prompt_tokens) - entry.start_position);
    sequence.num_scheduled = end;
    ++sequence.steps_in_flight;
    if (!entry.sample) continue;
    ++sequence.pending_samples;
    sequence.pending_sample_index = samples++;
    NoteCredit(sequence, now);
  }
}

absl::StatusOr<bool> SequenceEngine::Launch(TimePoint now) {
  CHECK(!pipeline_full());
  const StepPlan plan = Plan(State(), now);
  CarryOut(plan);
  if (plan.entries.empty()) return false;
  RETURN_IF_ERROR(pipeline_.Launch(plan.entries, MakeBatch(plan)));
  Account(plan, now);
  return true;
}

void SequenceEngine::ApplySample(Sequence& sequence, SampledToken token, StepOutcome& outcome) {
  --sequence.pending_samples;
  // Overshoot behind an end that the caller has not removed yet.
  if (sequence.finished) return;
  Sampled sampled;
  sampled.id = sequence.id;
  sampled.index = sequence.num_generated();
  sampled.token = std::move(token);
  if (sampled.token.finite) {
    --sequence.credits;
    sampled.finish = AppendToken(sequence, sampled.token.token_id);
  } else {
    sequence.finished = true;
  }
  outcome.sampled.push_back(std::move(sampled));
}

absl::StatusOr<std::optional<StepOutcome>> SequenceEngine::Collect(Duration timeout) {
  ASSIGN_OR_RETURN(std::optional<CompletedStep> done, pipeline_.Collect(timeout));
  if (!done.has_value()) return std::nullopt;
  ++counters_.steps;
  for (const RetiredBlocks& retired : done->retired) DropBlocks(retired.owner, retired.blocks);
  StepOutcome outcome;
  size_t next_sample = 0;
  for (const StepEntry& entry : done->entries) {
    SampledToken* token = entry.sample ? &done->result.samples[next_sample++] : nullptr;
    const auto it = sequences_.find(entry.id);
    if (it == sequences_.end()) continue;
    Sequence& sequence = it->second;
    --sequence.steps_in_flight;
    outcome.computed.push_back({entry.id, entry.start_position + entry.num_tokens});
    if (token != nullptr) ApplySample(sequence, std::move(*token), outcome);
    if (sequence.releasing && sequence.steps_in_flight == 0) CompletePreemption(sequence);
  }
  return std::optional<StepOutcome>(std::move(outcome));
}

void SequenceEngine::AbandonSteps() {
  for (const RetiredBlocks& retired : pipeline_.Abandon()) {
    DropBlocks(retired.owner, retired.blocks);
  }
  for (auto& [id, sequence] : sequences_) {
    sequence.steps_in_flight = 0;
    sequence.pending_samples = 0;
    sequence.finished = true;
  }
}

}  // namespace baton
