// y[m, n] = silu(gate[m, n]) * up[m, n], after a product of many rows whose weights are interleaved
// as SkinnyLinearParams::w is: x[m] = gate 0-7, up 0-7, gate 8-15, up 8-15, ...
#ifndef BATON_KERNELS_LINEAR_SWIGLU_CUDA_H_
#define BATON_KERNELS_LINEAR_SWIGLU_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

struct SwigluParams {
  const void* x = nullptr;  // [rows, 2n] of `type`, aligned to 16 bytes.
  int64_t x_stride = 0;     // Elements, a multiple of 8.
  void* y = nullptr;        // [rows, n] of `type`, aligned to 16 bytes.
  int64_t y_stride = 0;     // Elements, a multiple of 8.
  int32_t rows = 0;
  int32_t n = 0;  // A multiple of 8.
  HalfType type = HalfType::kBF16;
};

// ERRORS: kUnsupported: n or a stride not a multiple of 8; kInvalidArgument: null, misaligned.
KernelStatus Swiglu(const SwigluParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SWIGLU_CUDA_H_
