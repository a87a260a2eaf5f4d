// Launches the kernels of a list, in order, into the stream of the GPU: for a step, or into the
// capture of a graph. It allocates nothing and waits for nothing.
//
// Thread rule: owned by the owner of its program.
#ifndef BATON_DEVICE_CUDA_STEP_LAUNCHER_H_
#define BATON_DEVICE_CUDA_STEP_LAUNCHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "device/cuda/attention_planner.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/kv_marks.h"
#include "device/cuda/step_block.h"
#include "device/cuda/value_plan.h"
#include "device/device.h"
#include "kernels/launch/launch.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"

namespace baton {

// Rows of a step that the skinny kernel takes; more go to gated_linear and cuBLASLt, or, in the
// deterministic mode, to what gives its bits.
inline constexpr int32_t kFewRowsMax = 64;

// What a launch needs to know of a step.
struct StepRun {
  StepCounts counts;
  // Sequences that the two forms of attention are launched for.
  bool decode_attention = false;
  bool prefill_attention = false;
  const std::byte* block = nullptr;  // Device address of the step block.
  KvMarks* kv_marks = nullptr;       // Null: layers of KV are not reported.
};

class StepLauncher {
  struct Private {};

 public:
  // `attention` is null for a list without attention. ERRORS: InvalidArgument: what the kernels do
  // not take; ResourceExhausted: scratch.
  static absl::StatusOr<std::unique_ptr<StepLauncher>> Create(
      const OpList& list, int32_t tokens_max, const ProgramLimits& limits, const KvPool& kv,
      const AttentionPlanner* attention, CudaContext& context);
  StepLauncher(Private, const OpList& list, const ProgramLimits& limits, const KvPool& kv,
               const AttentionPlanner* attention, CudaContext& context);

  // Chooses algorithms for the products of many rows, within `budget` (what is cached costs
  // nothing).
  absl::Status TuneProducts(int32_t tokens_max, Duration budget);
  absl::Status Launch(const StepRun& run);
  // Kernels that the last Launch started.
  int launches() const { return launches_; }

  int64_t bytes() const { return bytes_; }
  // Device addresses. Results and last samples: [samples_max]; logits: [samples, logits_stride].
  const kernels::SampleResult* results() const;
  const float* logits() const;
  int64_t logits_stride() const;
  int64_t logits_cols() const;

 private:
  absl::Status Allocate(int32_t tokens_max);
  absl::Status Run(const EmbedOp& op);
  absl::Status Run(const AddNormOp& op);
  absl::Status Run(const LinearOp& op);
  absl::Status Run(const RopeAnglesOp& op);
  absl::Status Run(const RopeKvWriteOp& op);
  absl::Status Run(const AttentionOp& op);
  absl::Status Run(const GatherRowsOp& op);
  absl::Status Run(const SampleOp& op);
  absl::Status RunSkinny(const LinearOp& op, int32_t rows);
  absl::Status RunFixedLinear(const LinearOp& op, int32_t rows);
  absl::Status RunGatedLinear(const LinearOp& op, int32_t rows);
  absl::Status RunMatmul(const LinearOp& op, int32_t rows);
  cuda::MatmulShape MatmulShapeOf(const LinearOp& op) const;

  const ValuePlace& Place(ValueId id) const { return plan_.values[static_cast<size_t>(id.value)]; }
  std::byte* Data(ValueId id) const { return workspace_.get() + Place(id).offset; }
  int32_t Rows(ValueId id) const;
  template <typename T>
  const T* Step(size_t offset) const {
    return reinterpret_cast<const T*>(run_.block + offset);
  }
  kernels::PagedKv16 KvLayer(int32_t layer) const;
  // Of the next kernel: the first of a step follows a copy, and one may follow an event.
  kernels::LaunchOrder NextOrder();
  absl::Status Check(kernels::KernelStatus status, const char* what);

  // Constant after Create.
  const OpList& list_;
  const ProgramLimits limits_;
  const KvPool& kv_;
  const AttentionPlanner* const attention_;
  CudaContext& context_;
  const kernels::PagedKv16 kv_pages_;  // Of layer 0.
  const kernels::HalfType type_;
  const size_t skinny_bytes_;
  ValuePlan plan_;
  int64_t bytes_ = 0;
  std::shared_ptr<std::byte> workspace_;
  std::shared_ptr<std::byte> gated_;   // [tokens_max, 2 * widest gated rows], with bias
  std::shared_ptr<std::byte> skinny_;  // Workspace of the skinny products.
  std::shared_ptr<std::byte> skinny_counters_;
  std::shared_ptr<std::byte> decode_scratch_;  // Partial results of decode attention.
  std::shared_ptr<std::byte> dispenser_;       // Of prefill attention.
  std::shared_ptr<std::byte> results_;         // SampleResult [samples_max]
  std::shared_ptr<std::byte> last_samples_;    // int32 [samples_max]
  kernels::KvTensorMap kv_map_;
  ValueId logits_ = kNoValue;

  // Of the launch that is being made.
  StepRun run_;
  StepOffsets offsets_;
  int launches_ = 0;
  bool follows_kernel_ = false;
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_STEP_LAUNCHER_H_
