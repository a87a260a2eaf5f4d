// AddNorm of norm.h on the GPU: the residual stream in float32, delta and out in 16 bits.
//   residual += delta;  out = residual / sqrt(mean(residual^2) + epsilon) * gamma
// The sum of squares is added up in an order that depends on `cols` only, so a row's bits do not
// depend on the rest of the batch.
#ifndef BATON_KERNELS_NORM_NORM_CUDA_H_
#define BATON_KERNELS_NORM_NORM_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

inline constexpr int64_t kAddNormColsMax = 16384;

struct AddNormCudaParams {
  const void* delta = nullptr;   // [rows, cols] of `type`; null: nothing is added.
  float* residual = nullptr;     // [rows, cols], read and, with delta, written.
  const float* gamma = nullptr;  // [cols]; a weight: read before the kernel waits for others.
  void* out = nullptr;           // [rows, cols] of `type`; may be `delta`.
  int64_t rows = 0;
  int64_t cols = 0;  // [1, kAddNormColsMax]; quickest when a multiple of 8.
  float epsilon = 0;
  HalfType type = HalfType::kBF16;
};
KernelStatus AddNormCuda(const AddNormCudaParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_NORM_NORM_CUDA_H_
