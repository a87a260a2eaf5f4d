// What an engine loop asks of a model, one step at a time. The implementations are ModelRunner (a
// recorded model on a device) and, for tests and router benchmarks, executors without a model.
//
// Execution is asynchronous: Execute() returns a ticket at once, and the next step may be executed
// before the tokens of the last have been read (`from_previous_step`). Steps run in the order of
// Execute(). At most kStepsInFlightMax tickets may be outstanding.
//
// Thread rule: owned by the EngineLoop thread.
#ifndef BATON_ENGINE_RUNNER_STEP_EXECUTOR_H_
#define BATON_ENGINE_RUNNER_STEP_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/strong_id.h"
#include "engine/sampling/sampling_params.h"

namespace baton {

inline constexpr int kStepsInFlightMax = 2;

// The part of a step that belongs to one sequence: KV of tokens at positions
// [start_position, start_position + num_tokens) is computed and written, and, with `sample`, the
// token at position start_position + num_tokens is drawn.
struct SequenceStep {
  int32_t start_position = 0;
  // Ids of the tokens to compute, [num_tokens]. When from_previous_step is set, num_tokens is 1 and
  // the id is not read: it is the sample numbered `previous_sample` of the step executed just
  // before this one (counted over its sequences with `sample`, in order).
  std::vector<int32_t> token_ids = {};
  bool from_previous_step = false;
  int32_t previous_sample = 0;
  // Blocks of positions [0, start_position + num_tokens), in order; block i holds positions
  // [i * block_tokens, (i + 1) * block_tokens).
  std::vector<BlockId> block_table = {};
  bool sample = false;
  SamplingParams sampling = {};  // Read only with `sample`.
};

struct StepBatch {
  // Order is kept in the result. REQUIRES: no two entries write the same block.
  std::vector<SequenceStep> sequences;
  bool report_kv_layers = false;  // KvLayersReady is going to be asked.
};

struct TopLogprob {
  int32_t token_id = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token_id = 0;
  // Natural log of the model's own probability of the token (no temperature, no filters); always
  // finite. Meaningful only when SamplingParams::logprobs was set.
  float logprob = 0;
  // False when the row's logits held a NaN or an infinity: the token means nothing.
  bool finite = true;
  // Best first, num_top_logprobs entries.
  std::vector<TopLogprob> top_logprobs;
};

struct StepResult {
  // One per sequence with `sample`, in order.
  std::vector<SampledToken> samples;
};

using StepTicket = uint64_t;

// Limits of one step, fixed at construction of the executor.
struct StepLimits {
  int32_t tokens_max = 0;     // Over all sequences of a step.
  int32_t sequences_max = 0;  // Entries of a step.
  int32_t context_tokens_max = 0;
};

// What a device did for an executor so far; zeros where there is nothing to count.
struct ExecutorStats {
  uint64_t kernel_launches = 0;
  uint64_t graph_launches = 0;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  virtual const StepLimits& limits() const = 0;
  virtual ExecutorStats executor_stats() const { return {}; }

  // Starts a step. ERRORS: Internal or Unavailable when the device is lost; then nothing was
  // started and every later call fails as well. REQUIRES: within limits(); fewer than
  // kStepsInFlightMax tickets outstanding.
  virtual absl::StatusOr<StepTicket> Execute(const StepBatch& batch) = 0;

  // Waits up to `timeout` for the oldest outstanding ticket. ERRORS: DeadlineExceeded: not ready
  // yet, call again; anything else: the step failed and none of its tokens may be used. REQUIRES:
  // `ticket` is the oldest outstanding.
  virtual absl::StatusOr<StepResult> Wait(StepTicket ticket, Duration timeout) = 0;

  // Layers [0, n) of the KV that the step writes may be read although it still runs
  // (Program::KvLayersReady). REQUIRES: `ticket` is the oldest outstanding.
  virtual int32_t KvLayersReady(StepTicket ticket) { return 0; }
};

}  // namespace baton

#endif  // BATON_ENGINE_RUNNER_STEP_EXECUTOR_H_
