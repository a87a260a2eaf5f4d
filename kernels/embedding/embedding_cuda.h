// Rows by index on the GPU: the embedding of token ids into the float32 residual stream, and rows
// of activations. Indices are data of the step, in device memory.
#ifndef BATON_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_
#define BATON_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

struct EmbedCudaParams {
  // [rows]. >= 0: a token id; < 0: the id is last_samples[-1 - x].
  const int32_t* token_source = nullptr;
  const int32_t* last_samples = nullptr;  // [num_last_samples]; null when there are none.
  const void* table = nullptr;            // [n, k] of `type`, row-major
  float* out = nullptr;                   // [rows, k]
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  int32_t num_last_samples = 0;
  HalfType type = HalfType::kBF16;
};
// An id outside [0, n), or a source outside last_samples, gives a row of NaN, which the finite
// check of the sampler reports for its sequence alone; nothing outside of the arrays is read.
KernelStatus EmbedCuda(const EmbedCudaParams& p, CudaStream stream, LaunchOrder order);

struct GatherRowsCudaParams {
  const void* in = nullptr;       // [in_rows] rows of row_bytes
  const int32_t* rows = nullptr;  // [num_rows]
  void* out = nullptr;            // [num_rows] rows of row_bytes
  int64_t in_rows = 0;
  int64_t num_rows = 0;
  int64_t row_bytes = 0;  // Even; cols * 4 of float32 rows, cols * 2 of 16-bit rows.
};
// out[i] = in[rows[i]]. An index outside [0, in_rows) gives a row of bytes 0xFF, which is NaN.
KernelStatus GatherRowsCuda(const GatherRowsCudaParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_EMBEDDING_EMBEDDING_CUDA_H_
