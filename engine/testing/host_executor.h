// Base of the executors without a model: keeps tickets in order, checks every step as strictly as a
// device would suffer from it, writes one slot of host memory per token, and lets a test hold steps
// back, slow them down, fail them or spoil logits. What the next token is, the subclass says.
//
// KV layout: slot s of a block is 8 bytes at s * kTestSlotBytes: the token id and its position,
// both i32 in the machine's byte order. A pool with several layers has its slots divided among
// them; a step that reports layers writes one more each time it is asked.
//
// Thread rule: StepExecutor's calls come from one thread; the controls are thread-safe.
#ifndef BATON_ENGINE_TESTING_HOST_EXECUTOR_H_
#define BATON_ENGINE_TESTING_HOST_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "engine/kvcache/kv_memory.h"
#include "engine/runner/step_executor.h"

namespace baton {

inline constexpr uint64_t kTestSlotBytes = 8;

struct TestSlot {
  int32_t token_id = 0;
  int32_t position = 0;
};

void WriteTestSlot(const KvMemory& kv, BlockId block, int32_t slot, TestSlot value);
TestSlot ReadTestSlot(const KvMemory& kv, BlockId block, int32_t slot);

// Owns the host memory of a pool of test slots.
class TestKvPool {
 public:
  // REQUIRES: num_layers divides block_tokens.
  TestKvPool(int32_t num_blocks, int32_t block_tokens, int32_t num_layers = 1);
  KvMemory memory() { return memory_; }

 private:
  std::vector<std::byte> bytes_;
  KvMemory memory_;
};

class HostExecutor : public StepExecutor {
 public:
  // When a step touches KV memory: as early or as late as the contract allows.
  enum class ComputeTime { kAtExecute, kAtWait };

  struct Options {
    StepLimits limits = {.tokens_max = 64, .sequences_max = 32, .context_tokens_max = 1 << 20};
    KvMemory kv = {};  // Without memory (base == nullptr) nothing is written.
    int32_t vocabulary_size = 1000;
    ComputeTime compute_time = ComputeTime::kAtWait;
    // Real time from Execute to the end of a step, at least.
    Duration step_time = Duration::zero();
  };

  const StepLimits& limits() const override { return options_.limits; }
  absl::StatusOr<StepTicket> Execute(const StepBatch& batch) override;
  absl::StatusOr<StepResult> Wait(StepTicket ticket, Duration timeout) override;
  int32_t KvLayersReady(StepTicket ticket) override;

  // While held no step ends: Wait times out.
  void Hold() EXCLUDES(mutex_);
  void Release() EXCLUDES(mutex_);
  // The device is lost: from now on every Execute and Wait returns `status`.
  void Fail(const absl::Status& status) EXCLUDES(mutex_);
  // Asked for each sample with the step's sequence; true spoils its logits.
  void SpoilLogitsIf(std::function<bool(const SequenceStep&)> predicate) EXCLUDES(mutex_);
  // Called with each step as it is executed.
  void OnExecute(std::function<void(const StepBatch&)> hook) EXCLUDES(mutex_);

  uint64_t steps_executed() const EXCLUDES(mutex_);
  uint64_t tokens_executed() const EXCLUDES(mutex_);

 protected:
  explicit HostExecutor(const Options& options);
  // The token behind position start + num_tokens - 1, whose id is `last_token`. KV is written.
  virtual int32_t NextToken(const SequenceStep& step, int32_t last_token) = 0;
  const Options& options() const { return options_; }

 private:
  struct Pending {
    StepTicket ticket = 0;
    StepBatch batch;
    std::optional<StepResult> result;
    TimePoint ready;
    int32_t kv_layers = 0;  // Written.
  };

  void CheckBatch(const StepBatch& batch) const;
  StepResult Compute(const StepBatch& batch);
  int32_t TokenId(const SequenceStep& step, size_t i) const;
  // Slots of the step that lie in layers [begin, end).
  void WriteKv(const SequenceStep& step, int32_t layer_begin, int32_t layer_end) const;

  const Options options_;
  // Of the EngineLoop thread.
  std::deque<Pending> pending_;
  std::vector<SampledToken> last_samples_;
  StepTicket next_ticket_ = 1;

  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ GUARDED_BY(mutex_) = false;
  absl::Status failure_ GUARDED_BY(mutex_);
  std::function<bool(const SequenceStep&)> spoil_ GUARDED_BY(mutex_);
  std::function<void(const StepBatch&)> on_execute_ GUARDED_BY(mutex_);
  uint64_t steps_ GUARDED_BY(mutex_) = 0;
  uint64_t tokens_ GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_TESTING_HOST_EXECUTOR_H_
