// Residual addition and RMS normalisation in one pass:
//   residual += delta;  out = residual / sqrt(mean(residual^2) + epsilon) * gamma
// Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
//
// Bits of a row depend on that row only. Bytes moved: 4 * rows * cols * (2 reads + 2 writes); the
// arithmetic is negligible, so it is bound by memory, or by the caches when the row is in them.
// Thread rule: pure; calls for disjoint rows may run at once.
#ifndef BATON_KERNELS_NORM_NORM_H_
#define BATON_KERNELS_NORM_NORM_H_

#include <cstdint>

namespace baton::kernels {

struct AddNormParams {
  const float* delta = nullptr;  // [rows, cols]; null: nothing is added.
  float* residual = nullptr;     // [rows, cols], read and, with delta, written.
  const float* gamma = nullptr;  // [cols]
  float* out = nullptr;          // [rows, cols]; may be neither delta nor residual.
  int64_t cols = 0;
  float epsilon = 0;
};

// Rows [row_begin, row_end).
void AddNormRef(const AddNormParams& p, int64_t row_begin, int64_t row_end);
void AddNormCpu(const AddNormParams& p, int64_t row_begin, int64_t row_end);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_NORM_NORM_H_
