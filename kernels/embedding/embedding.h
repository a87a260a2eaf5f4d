// Rows by index: the embedding of token ids (from a matrix packed for linear.h, so that a model
// whose head is its embedding stores it once), and rows of activations.
//
// Bytes: rows * cols * (element size + 4); packed, each element read costs a cache line of 16 rows.
// Thread rule: pure; calls for disjoint output rows may run at once.
#ifndef BATON_KERNELS_EMBEDDING_EMBEDDING_H_
#define BATON_KERNELS_EMBEDDING_EMBEDDING_H_

#include <cstdint>

#include "kernels/linear/linear.h"

namespace baton::kernels {

struct EmbedParams {
  const int32_t* ids = nullptr;  // [rows]
  const void* packed = nullptr;  // [n, k] in panels, not gated
  float* out = nullptr;          // [rows, k]
  int64_t n = 0;
  int64_t k = 0;
  WeightType type = WeightType::kF32;
};

// Rows [row_begin, row_end). An id outside [0, n) gives a row of NaN, which the finite check of the
// sampler reports for its sequence alone; no memory outside the table is read.
void Embed(const EmbedParams& p, int64_t row_begin, int64_t row_end);

// out[i] = in[rows[i]], rows of `cols` floats, for i in [begin, end).
void GatherRows(const float* in, const int32_t* rows, int64_t cols, int64_t begin, int64_t end,
                float* out);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_EMBEDDING_EMBEDDING_H_
