// y[m, n] = silu(gate) * up, gate = sum_k x[m, k] w_gate[n, k], up likewise: the first half of a
// gated feed-forward layer for many rows, in one kernel. What the product makes is never written.
#ifndef BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_CUDA_H_
#define BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_CUDA_H_

#include <cstdint>

#include "kernels/gated_linear/gated_linear_plan.h"
#include "kernels/launch/launch.h"

namespace baton::kernels {

struct GatedLinearParams {
  const void* x = nullptr;  // [rows, k] of `type`, aligned to 16 bytes.
  int64_t x_stride = 0;     // Elements from a row to the next; a multiple of 8.
  // [2n, k] of `type`, contiguous, aligned to 16 bytes: gate and up interleaved in groups of 8
  // rows, as SkinnyLinearParams::w.
  const void* w = nullptr;
  void* y = nullptr;     // [rows, n] of `type`, aligned to 16 bytes.
  int64_t y_stride = 0;  // Elements from a row to the next; a multiple of 8.
  HalfType type = HalfType::kBF16;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t num_sms = 0;  // Multiprocessors of the device (132 on H200).
};

// ERRORS: kUnsupported: not GatedLinearSupports; kInvalidArgument: null, misaligned.
KernelStatus GatedLinear(const GatedLinearParams& p, CudaStream stream, LaunchOrder order);

// The same cut as the caller says, for tests and benches.
KernelStatus GatedLinearWithPlan(const GatedLinearParams& p, const GatedLinearPlan& plan,
                                 CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_CUDA_H_
