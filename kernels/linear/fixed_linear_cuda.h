// Products of many rows in a fixed order of sums: y[m, n] = sum_k x[m, k] w[n, k] + bias[n], or
// gated: y = silu(gate) * up.
//
// Every row of y has the bits that SkinnyLinear gives for the same row of x on a device with as
// many multiprocessors: the same instructions over the same chunks of k, cut and added at the same
// places. So a row's result depends neither on the other rows nor on their number.
#ifndef BATON_KERNELS_LINEAR_FIXED_LINEAR_CUDA_H_
#define BATON_KERNELS_LINEAR_FIXED_LINEAR_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/linear/fixed_linear_plan.h"

namespace baton::kernels {

struct FixedLinearParams {
  const void* x = nullptr;  // [rows, k] of `type`, aligned to 16 bytes.
  int64_t x_stride = 0;     // Elements from a row to the next; a multiple of 8.
  // [n, k] of `type`, contiguous, aligned to 16 bytes. Gated: [2n, k], gate and up interleaved in
  // groups of 8 rows, as SkinnyLinearParams::w.
  const void* w = nullptr;
  const void* bias = nullptr;  // In the order of w's rows, of `type`; null: none.
  // [rows, n], of `type`, or float32 when y_is_f32. Of `type`, aligned to 16 bytes, with n and the
  // stride multiples of 8: stored by the copy engine, otherwise by threads, slower.
  void* y = nullptr;
  int64_t y_stride = 0;  // Elements from a row to the next.
  bool y_is_f32 = false;
  bool gated = false;
  HalfType type = HalfType::kBF16;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t num_sms = 0;  // Multiprocessors of the device (132 on H200).
};

// ERRORS: kUnsupported: not FixedLinearSupports; kInvalidArgument: null, misaligned.
KernelStatus FixedLinear(const FixedLinearParams& p, CudaStream stream, LaunchOrder order);

// The same with tiles as the caller says, for tests and benches: 64 or 128 tokens, or pairs of
// tiles of 128 or 192.
KernelStatus FixedLinearWithPlan(const FixedLinearParams& p, const FixedLinearPlan& plan,
                                 CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_FIXED_LINEAR_CUDA_H_
