#include "engine/testing/host_executor.h"

#include <cstring>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "engine/kvcache/block_table.h"

namespace baton {

void WriteTestSlot(const KvMemory& kv, BlockId block, int32_t slot, TestSlot value) {
  static_assert(sizeof(TestSlot) == kTestSlotBytes);
  std::memcpy(kv.Block(block).data() + slot * kTestSlotBytes, &value, sizeof(value));
}

TestSlot ReadTestSlot(const KvMemory& kv, BlockId block, int32_t slot) {
  TestSlot value;
  std::memcpy(&value, kv.Block(block).data() + slot * kTestSlotBytes, sizeof(value));
  return value;
}

TestKvPool::TestKvPool(int32_t num_blocks, int32_t block_tokens, int32_t num_layers)
    : bytes_(kTestSlotBytes * num_blocks * block_tokens, std::byte{0xee}) {
  memory_ = {.base = bytes_.data(),
             .block_bytes = kTestSlotBytes * block_tokens,
             .num_blocks = num_blocks,
             .block_tokens = block_tokens,
             .num_layers = num_layers};
  CHECK_EQ(block_tokens % num_layers, 0);
}

HostExecutor::HostExecutor(const Options& options) : options_(options) {
  CHECK_GT(options.vocabulary_size, 0);
  if (options.kv.base != nullptr) {
    CHECK_EQ(options.kv.block_bytes, kTestSlotBytes * options.kv.block_tokens);
  }
}

void HostExecutor::CheckBatch(const StepBatch& batch) const {
  const int32_t block_tokens = options_.kv.block_tokens;
  CHECK(!batch.sequences.empty());
  CHECK_LE(static_cast<int32_t>(batch.sequences.size()), options_.limits.sequences_max);
  int32_t num_tokens = 0;
  std::set<BlockId> written;
  for (const SequenceStep& step : batch.sequences) {
    CHECK(!step.token_ids.empty());
    CHECK(!step.from_previous_step || step.token_ids.size() == 1);
    num_tokens += static_cast<int32_t>(step.token_ids.size());
    const int32_t end = step.start_position + static_cast<int32_t>(step.token_ids.size());
    CHECK_GE(step.start_position, 0);
    CHECK_LE(end, options_.limits.context_tokens_max);
    if (block_tokens == 0) continue;
    CHECK_EQ(static_cast<int32_t>(step.block_table.size()), BlocksForTokens(end, block_tokens));
    for (int32_t i = step.start_position / block_tokens; i * block_tokens < end; ++i) {
      CHECK(written.insert(step.block_table[i]).second)
          << "block " << step.block_table[i] << " is written by two entries of a step";
    }
  }
  for (const SequenceStep& step : batch.sequences) {
    if (block_tokens == 0) continue;
    for (int32_t i = 0; i < step.start_position / block_tokens; ++i) {
      CHECK(!written.contains(step.block_table[i]))
          << "block " << step.block_table[i] << " is read and written by one step";
    }
  }
  CHECK_LE(num_tokens, options_.limits.tokens_max);
}

absl::StatusOr<StepTicket> HostExecutor::Execute(const StepBatch& batch) {
  CHECK_LT(static_cast<int>(pending_.size()), kStepsInFlightMax);
  CheckBatch(batch);
  std::function<void(const StepBatch&)> hook;
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    ++steps_;
    for (const SequenceStep& step : batch.sequences) tokens_ += step.token_ids.size();
    hook = on_execute_;
  }
  if (hook) hook(batch);
  Pending pending;
  pending.ticket = next_ticket_++;
  pending.batch = batch;
  pending.ready = Clock::Real()->Now() + options_.step_time;
  if (options_.compute_time == ComputeTime::kAtExecute) pending.result = Compute(batch);
  pending_.push_back(std::move(pending));
  return pending_.back().ticket;
}

absl::StatusOr<StepResult> HostExecutor::Wait(StepTicket ticket, Duration timeout) {
  CHECK(!pending_.empty());
  CHECK_EQ(pending_.front().ticket, ticket);
  const TimePoint give_up = SaturatingAdd(Clock::Real()->Now(), timeout);
  {
    MutexLock lock(mutex_);
    while (true) {
      if (!failure_.ok()) return failure_;
      const TimePoint now = Clock::Real()->Now();
      if (!held_ && pending_.front().ready <= now) break;
      if (now >= give_up) return absl::DeadlineExceededError("step not done");
      const TimePoint until = held_ ? give_up : std::min(give_up, pending_.front().ready);
      changed_.WaitFor(mutex_, until - now);
    }
  }
  Pending done = std::move(pending_.front());
  pending_.pop_front();
  if (!done.result.has_value()) done.result = Compute(done.batch);
  return *std::move(done.result);
}

int32_t HostExecutor::KvLayersReady(StepTicket ticket) {
  CHECK(!pending_.empty());
  Pending& step = pending_.front();
  CHECK_EQ(step.ticket, ticket);
  const KvMemory& kv = options_.kv;
  if (!step.batch.report_kv_layers || kv.base == nullptr || step.kv_layers == kv.num_layers) {
    return step.kv_layers;
  }
  ++step.kv_layers;
  if (step.result.has_value()) return step.kv_layers;  // All was written by Execute.
  for (const SequenceStep& sequence : step.batch.sequences) {
    WriteKv(sequence, step.kv_layers - 1, step.kv_layers);
  }
  return step.kv_layers;
}

int32_t HostExecutor::TokenId(const SequenceStep& step, size_t i) const {
  if (!step.from_previous_step) return step.token_ids[i];
  CHECK(step.previous_sample >= 0 &&
        step.previous_sample < static_cast<int32_t>(last_samples_.size()));
  return last_samples_[step.previous_sample].token_id;
}

void HostExecutor::WriteKv(const SequenceStep& step, int32_t layer_begin, int32_t layer_end) const {
  const KvMemory& kv = options_.kv;
  for (size_t i = 0; i < step.token_ids.size(); ++i) {
    const int32_t position = step.start_position + static_cast<int32_t>(i);
    const int32_t slot = position % kv.block_tokens;
    const int32_t layer = slot / (kv.block_tokens / kv.num_layers);
    if (layer < layer_begin || layer >= layer_end) continue;
    WriteTestSlot(kv, step.block_table[position / kv.block_tokens], slot,
                  {.token_id = TokenId(step, i), .position = position});
  }
}

StepResult HostExecutor::Compute(const StepBatch& batch) {
  std::function<bool(const SequenceStep&)> spoil;
  {
    MutexLock lock(mutex_);
    spoil = spoil_;
  }
  const KvMemory& kv = options_.kv;
  StepResult result;
  for (const SequenceStep& step : batch.sequences) {
    const int32_t last_token = TokenId(step, step.token_ids.size() - 1);
    if (kv.base != nullptr) WriteKv(step, 0, kv.num_layers);
    if (!step.sample) continue;
    SampledToken token;
    token.token_id = NextToken(step, last_token);
    if (step.sampling.logprobs) {
      token.logprob = -static_cast<float>(token.token_id % 8) / 8;
      for (int k = 0; k < step.sampling.num_top_logprobs; ++k) {
        token.top_logprobs.push_back({(token.token_id + k) % options_.vocabulary_size,
                                      token.logprob - static_cast<float>(k)});
      }
    }
    token.finite = !(spoil && spoil(step));
    result.samples.push_back(std::move(token));
  }
  last_samples_ = result.samples;
  return result;
}

void HostExecutor::Hold() {
  MutexLock lock(mutex_);
  held_ = true;
}

void HostExecutor::Release() {
  {
    MutexLock lock(mutex_);
    held_ = false;
  }
  changed_.SignalAll();
}

void HostExecutor::Fail(const absl::Status& status) {
  CHECK(!status.ok());
  {
    MutexLock lock(mutex_);
    failure_ = status;
  }
  changed_.SignalAll();
}

void HostExecutor::SpoilLogitsIf(std::function<bool(const SequenceStep&)> predicate) {
  MutexLock lock(mutex_);
  spoil_ = std::move(predicate);
}

void HostExecutor::OnExecute(std::function<void(const StepBatch&)> hook) {
  MutexLock lock(mutex_);
  on_execute_ = std::move(hook);
}

uint64_t HostExecutor::steps_executed() const {
  MutexLock lock(mutex_);
  return steps_;
}

uint64_t HostExecutor::tokens_executed() const {
  MutexLock lock(mutex_);
  return tokens_;
}

}  // namespace baton
