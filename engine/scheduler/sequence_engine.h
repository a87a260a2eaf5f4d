// The part of an engine loop that knows no messages and no transfers: sequences, their blocks, the
// planner and the steps in flight of one model replica. Each turn of a loop calls Launch() (plan
// and start a step, when there is room for one) and Collect() (read the oldest step).
//
// Invariants:
//  - A sequence's tokens grow by exactly one for each Sampled that Collect() reports, in order of
//    position; a token drawn for a sequence that has ended or was removed meanwhile is discarded.
//  - A block that a step in flight reads or writes keeps its holder until that step is done.
//  - After a status other than OK of Launch() or Collect() the device is lost: the caller removes
//  all
//    sequences; nothing is launched any more.
//
// Thread rule: owned by the EngineLoop thread.
#ifndef BATON_ENGINE_SCHEDULER_SEQUENCE_ENGINE_H_
#define BATON_ENGINE_SCHEDULER_SEQUENCE_ENGINE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/strong_id.h"
#include "engine/kvcache/block_pool.h"
#include "engine/runner/step_executor.h"
#include "engine/scheduler/planner.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_pipeline.h"

namespace baton {

// A token that was drawn and appended. With token.finite == false nothing was appended: the
// sequence has to be removed.
struct Sampled {
  SequenceId id;
  int32_t index = 0;  // Of the generated token, from 0 at the border.
  SampledToken token;
  std::optional<FinishReason> finish;
};

// The KV of positions [0, num_computed) of a sequence now lies in its blocks.
struct Computed {
  SequenceId id;
  int32_t num_computed = 0;
};

struct StepOutcome {
  std::vector<Computed> computed;  // One per sequence of the step that is still there.
  std::vector<Sampled> sampled;
};

// Since construction.
struct EngineCounters {
  uint64_t steps = 0;  // Completed.
  // Launched positions below the border between prompt and generated tokens; those of recomputation
  // and of sequences that were removed meanwhile included.
  uint64_t prompt_tokens = 0;
  uint64_t preemptions = 0;
};

class SequenceEngine {
 public:
  struct Options {
    StepExecutor* executor = nullptr;  // Outlives the engine.
    int32_t num_blocks = 0;
    int32_t block_tokens = 0;
    // 0: the executor's limit, which is also the upper bound.
    int32_t tokens_per_step_max = 0;
    int32_t sequences_max = 0;
    // 0: 1/64 of the pool, at least 1.
    int32_t growth_watermark_blocks = 0;
    // 0: half of the pool.
    int32_t reserved_blocks_max = 0;
    int32_t passes_max = 64;
    Duration paused_hold = Duration::zero();
    // Steps that compute so many tokens of a sequence report layers of KV while they run; 0: none.
    int32_t report_kv_layers_tokens_min = 0;
  };

  explicit SequenceEngine(const Options& options);

  // Tokens that a sequence may reach: the executor's context, or what fills the whole pool (the
  // last token needs no KV). A sequence that gets there ends with kLength.
  int32_t context_tokens_max() const { return context_tokens_max_; }

  // ERRORS: InvalidArgument: no token, a border outside (0, tokens], max_tokens not above what
  // earlier attempts generated, or no room for one more token in the context or the pool, with both
  // numbers.
  absl::Status Validate(const SequenceSpec& spec) const;

  // A sequence that waits to be computed from its first token. REQUIRES: Validate(spec).ok().
  SequenceId Add(SequenceSpec spec);

  // A sequence whose KV comes from elsewhere, with blocks for all its tokens and for
  // `output_tokens` more. ERRORS: ResourceExhausted: no room now. REQUIRES: Validate(spec).ok().
  absl::StatusOr<SequenceId> Reserve(SequenceSpec spec, int32_t output_tokens);

  // The KV of all its tokens lies in its blocks and `token_id` follows them: it runs from here on.
  // Returns the reason when that token ends it. REQUIRES: it awaits KV.
  std::optional<FinishReason> Join(SequenceId id, int32_t token_id);

  // Forgets the sequence; its blocks come back now or with the step in flight. REQUIRES: known.
  void Remove(SequenceId id);

  // Forgets the sequence and hands the caller its blocks and their kSequence holders.
  // REQUIRES: known, and no step in flight contains it.
  std::vector<BlockId> Detach(SequenceId id);

  // Unknown sequences are ignored.
  void GrantCredits(SequenceId id, int64_t credits, TimePoint now);
  // While wired a sequence is not preempted. Unknown sequences are ignored.
  void SetWired(SequenceId id, bool wired);

  // Plans and starts a step. False: there is nothing to compute now. REQUIRES: !pipeline_full().
  absl::StatusOr<bool> Launch(TimePoint now);
  // Nothing: the oldest step is not done. REQUIRES: steps_in_flight() > 0.
  absl::StatusOr<std::optional<StepOutcome>> Collect(Duration timeout);
  // Of the oldest step in flight: layers whose KV its blocks hold already, and what it computes of
  // which sequence; some may be gone by now. REQUIRES: steps_in_flight() > 0.
  int32_t KvLayersReady() const { return pipeline_.KvLayersReady(); }
  absl::Span<const StepEntry> oldest_step() const { return pipeline_.oldest(); }
  // After an error: forgets the steps in flight.
  void AbandonSteps();

  int steps_in_flight() const { return pipeline_.steps_in_flight(); }
  bool pipeline_full() const { return pipeline_.full(); }
  // Null when not known (any more); valid until the next call that is not const.
  const Sequence* Find(SequenceId id) const;
  const std::map<SequenceId, Sequence>& sequences() const { return sequences_; }
  // Whether a step is in flight or some sequence could be computed if it had blocks.
  bool has_work() const;
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  const SchedulerLimits& limits() const { return limits_; }
  const EngineCounters& counters() const { return counters_; }

 private:
  SchedulerState State() const;
  Sequence& Insert(SequenceSpec spec);
  Sequence& At(SequenceId id);
  void DropBlocks(SequenceId owner, const std::vector<BlockId>& blocks);
  void Preempt(Sequence& sequence);
  void CompletePreemption(Sequence& sequence);
  void CarryOut(const StepPlan& plan);
  StepBatch MakeBatch(const StepPlan& plan) const;
  // Counts a launched step in its sequences.
  void Account(const StepPlan& plan, TimePoint now);
  void ApplySample(Sequence& sequence, SampledToken token, StepOutcome& outcome);

  SchedulerLimits limits_;
  int32_t context_tokens_max_ = 0;
  const int32_t report_kv_layers_tokens_min_;
  BlockPool pool_;
  StepPipeline pipeline_;
  std::map<SequenceId, Sequence> sequences_;  // In order of rank.
  uint64_t next_id_ = 1;
  EngineCounters counters_;
  bool short_of_blocks_ = false;
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_SEQUENCE_ENGINE_H_
