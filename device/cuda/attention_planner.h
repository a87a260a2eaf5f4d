// Which kernels do the attention of a program, and their work lists, once a step for all layers.
// Pure but for the grid, which it asks the GPU for once.
//
// Thread rule: Plan belongs to the owner of the program.
#ifndef BATON_DEVICE_CUDA_ATTENTION_PLANNER_H_
#define BATON_DEVICE_CUDA_ATTENTION_PLANNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/cuda/step_block.h"
#include "device/device.h"
#include "kernels/decode_attention/decode_attention_cuda.h"
#include "kernels/decode_attention/decode_attention_plan.h"
#include "kernels/prefill_attention/prefill_attention_plan.h"

namespace baton {

class AttentionPlanner {
 public:
  // `op`: any of the list's; they share heads and dimensions. ERRORS: InvalidArgument: a head
  // dimension that no kernel does.
  static absl::StatusOr<AttentionPlanner> Create(const AttentionOp& op, int32_t block_tokens,
                                                 const ProgramLimits& limits, bool deterministic);

  kernels::PrefillKernel prefill_kernel() const { return prefill_.kernel; }
  const kernels::DecodePlanOptions& decode() const { return decode_; }
  // False: every query is done by the prefill kernel, whatever its length.
  bool has_decode() const { return has_decode_; }

  // Capacities for a step of so many sequences, padding included, of one token each.
  StepCounts DecodeCounts(int32_t rows) const;
  // Largest of any step within the limits, for buffers.
  StepCounts CountsMax(int32_t tokens_max) const;

  // Makes the lists of a step and sets prefill_work and decode_plan_bytes of `counts`, whose
  // sequences count is set. The lists are valid until the next Plan.
  void Plan(const StepMeta& meta, StepCounts* counts, bool* has_short, bool* has_long);
  // Writes them into a step block. REQUIRES: `counts` hold them.
  void Write(const StepCounts& counts, std::byte* block) const;

 private:
  kernels::PrefillPlanShape prefill_;
  kernels::DecodePlanOptions decode_;
  bool has_decode_ = false;
  int32_t sequences_max_ = 0;

  // Of the last step; kept, so that planning allocates nothing once warm.
  std::vector<int32_t> query_lengths_;
  std::vector<int32_t> kv_lengths_;
  std::vector<int32_t> padded_query_starts_;
  std::vector<int32_t> padded_table_starts_;
  std::vector<kernels::PrefillWork> prefill_work_;
  kernels::DecodePlan decode_plan_;
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_ATTENTION_PLANNER_H_
