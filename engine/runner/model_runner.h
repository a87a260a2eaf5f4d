// A recorded model on a device, with its KV pool: what an engine loop executes its plans on.
//
// Thread rule: ModelRunner is owned by the EngineLoop thread, like every StepExecutor. LoadModel
// may be called by any thread; the runner belongs to the first thread that executes a step on it.
#ifndef BATON_ENGINE_RUNNER_MODEL_RUNNER_H_
#define BATON_ENGINE_RUNNER_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/thread_checker.h"
#include "device/device.h"
#include "device/kv_layout.h"
#include "engine/runner/step_executor.h"
#include "engine/weights/model_config.h"

namespace baton {

class ModelRunner : public StepExecutor {
 public:
  // `kv` must outlive the runner. `logit_cols`: rows of the head.
  ModelRunner(std::unique_ptr<Program> program, const KvPool& kv, const StepLimits& limits,
              int32_t logit_cols);

  const StepLimits& limits() const override { return limits_; }
  // Ids outside the vocabulary are not an error here: the rows that depend on them come out as not
  // finite, and the rest of the batch is undisturbed.
  absl::StatusOr<StepTicket> Execute(const StepBatch& batch) override;
  absl::StatusOr<StepResult> Wait(StepTicket ticket, Duration timeout) override;
  int32_t KvLayersReady(StepTicket ticket) override;

  // Raw logits [rows.size(), vocab_size] of the tokens numbered `rows` of one sequence's step (0 is
  // token_ids[0]); its KV is written as usual, `sample` is ignored. Blocks. For evaluation and
  // tests. REQUIRES: no ticket outstanding; rows.size() <= limits().sequences_max.
  absl::StatusOr<std::vector<float>> ComputeLogits(const SequenceStep& sequence,
                                                   absl::Span<const int32_t> rows);

  int64_t workspace_bytes() const { return program_->workspace_bytes(); }
  ProgramStats stats() const { return program_->stats(); }
  ExecutorStats executor_stats() const override {
    const ProgramStats stats = program_->stats();
    return {.kernel_launches = stats.kernel_launches, .graph_launches = stats.graph_launches};
  }
  int32_t logit_cols() const { return logit_cols_; }

 private:
  void AppendSequence(const SequenceStep& sequence);
  void AppendSample(const SequenceStep& sequence, int32_t token, int32_t first_row);
  absl::StatusOr<DeviceTicket> Enqueue();

  const KvPool& kv_;
  const StepLimits limits_;
  const int32_t logit_cols_;
  std::unique_ptr<Program> program_;
  ThreadChecker thread_;
  int num_outstanding_ = 0;
  int32_t samples_of_last_step_ = 0;
  absl::Status failure_;  // Sticky.
  StepMeta meta_;         // Reused, so that a step allocates nothing once warm.
};

inline constexpr int64_t kKvMemoryAuto = 0;

struct LoadOptions {
  // What the KV pool may take; it holds as many whole blocks as fit. kKvMemoryAuto: what the device
  // has left beside the weights, the activations and kv_reserve_bytes, divided by kv_sharers.
  int64_t kv_memory_bytes = int64_t{256} << 20;
  int64_t kv_reserve_bytes = 0;  // Weights of models that are loaded later.
  int32_t kv_sharers = 1;        // Models that are still to get a pool, this one included.
  // So many blocks instead; 0: by memory.
  int32_t kv_blocks = 0;
  int32_t block_tokens = kBlockTokensDefault;
  // Of one step.
  int32_t tokens_max = 512;
  int32_t sequences_max = 64;
  // Longest context; absent: the model's own. More than the model's positions is refused unless
  // allow_beyond_model (ResolveContextLimit in engine/weights/model_config.h).
  std::optional<int32_t> context_tokens = std::nullopt;
  bool allow_beyond_model = false;
  // Tokens that the tokenizer knows; rows of the head from there on are never drawn. 0: all rows.
  int32_t sampled_vocab = 0;
};

struct LoadedModel {
  ModelConfig config;
  std::string revision;  // Checkpoint::revision
  KvLayout layout;
  int64_t weight_bytes = 0;
  std::unique_ptr<KvPool> kv;
  std::unique_ptr<ModelRunner> runner;  // After kv: destroyed before it.
};

// Reads a model directory (or makes a synthetic model, engine/model/synthetic.h) and makes it ready
// on `device`, which must outlive the result and may hold any number of models. Nothing of the
// files is needed afterwards. ERRORS, all naming the directory: InvalidArgument,
// FailedPrecondition: file, key, tensor or option that is wrong; ResourceExhausted: what did not
// fit (weights of which tensor, KV pool, activations).
absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options,
                                      Device& device);

}  // namespace baton

#endif  // BATON_ENGINE_RUNNER_MODEL_RUNNER_H_
