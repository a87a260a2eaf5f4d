// Rotary position embedding (Su et al., RoFormer, 2021) in the half-split form of Hugging Face:
// dimension i is paired with i + head_dim / 2. Queries are rotated into `q`; keys are rotated and,
// with the values, written to the paged KV pool.
//
// Bits of a row depend on that row only, and equal the reference's: both use the same operations.
// Bytes moved: 8 * rows * (num_heads + 2 * num_kv_heads) * head_dim.
// Thread rule: pure; calls for disjoint rows may run at once (no two rows share a slot).
#ifndef BATON_KERNELS_ROPE_ROPE_H_
#define BATON_KERNELS_ROPE_ROPE_H_

#include <cstdint>

#include "kernels/rope/paged_kv.h"

namespace baton::kernels {

struct RopeAnglesParams {
  const int32_t* positions = nullptr;          // [rows]
  const float* inverse_frequencies = nullptr;  // [half]
  float* out = nullptr;                        // [rows, 2, half]: cosines, then sines.
  int64_t half = 0;                            // head_dim / 2
  float scale = 1;                             // Multiplies cosines and sines (YaRN).
};

// Once a step; all layers read the result. The angle is the float32 product position * frequency,
// as in the models' training code. Rows [row_begin, row_end).
void RopeAngles(const RopeAnglesParams& p, int64_t row_begin, int64_t row_end);

struct RopeKvWriteParams {
  // [rows, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values.
  const float* qkv = nullptr;
  const float* angles = nullptr;   // [rows, 2, head_dim / 2]
  const int64_t* slots = nullptr;  // [rows]
  float* q = nullptr;              // [rows, num_heads * head_dim]
  PagedKvLayer kv;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
};

// Rows [row_begin, row_end). REQUIRES: head_dim is even.
void RopeKvWriteRef(const RopeKvWriteParams& p, int64_t row_begin, int64_t row_end);
void RopeKvWriteCpu(const RopeKvWriteParams& p, int64_t row_begin, int64_t row_end);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ROPE_ROPE_H_
