// Rotary position embedding and the KV write of rope.h on the GPU: 16-bit activations and pool,
// float32 angles and arithmetic. Bits of a row depend on that row only.
#ifndef BATON_KERNELS_ROPE_ROPE_CUDA_H_
#define BATON_KERNELS_ROPE_ROPE_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

struct RopeAnglesCudaParams {
  const int32_t* positions = nullptr;          // [rows]
  const float* inverse_frequencies = nullptr;  // [half]
  float* out = nullptr;                        // [rows, 2, half]: cosines, then sines.
  int64_t rows = 0;
  int64_t half = 0;  // head_dim / 2
  float scale = 1;   // Multiplies cosines and sines (YaRN).
};
// Bits equal RopeAngles of rope.h.
KernelStatus RopeAnglesCuda(const RopeAnglesCudaParams& p, CudaStream stream, LaunchOrder order);

struct RopeKvWriteCudaParams {
  // [rows, (num_heads + 2 * kv.num_kv_heads) * kv.head_dim] of kv.type: queries, keys, values.
  const void* qkv = nullptr;
  const float* angles = nullptr;   // [rows, 2, head_dim / 2], of RopeAnglesCuda
  const int64_t* slots = nullptr;  // [rows], block * block_tokens + offset; -1: writes no KV.
  // With gammas, each head is divided by its root mean square and multiplied by gamma before the
  // rotation (QK-norm). Null: off.
  const float* q_gamma = nullptr;  // [head_dim]
  const float* k_gamma = nullptr;  // [head_dim]
  float qk_epsilon = 0;
  void* q = nullptr;  // [rows, num_heads * head_dim] of kv.type
  PagedKv16 kv;
  int64_t rows = 0;
  int32_t num_heads = 0;
};
// Any even head dimension; quickest are multiples of 16 up to 512 with qkv, q, the pool, its
// strides and the gammas aligned to 16 bytes.
KernelStatus RopeKvWriteCuda(const RopeKvWriteCudaParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ROPE_ROPE_CUDA_H_
