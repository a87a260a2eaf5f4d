// Bias, activation and stores of a tile of 128 weight rows by up to 256 tokens, for the kernels
// that promise each other's bits: whatever they compute after the sum over k is here.
#ifndef BATON_KERNELS_LINEAR_SKINNY_LINEAR_EPILOGUE_CUH_
#define BATON_KERNELS_LINEAR_SKINNY_LINEAR_EPILOGUE_CUH_

#include <cstdint>

#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.h"
#include "kernels/linear/skinny_linear_plan.h"

namespace baton::kernels {

struct LinearOutput {
  const void* bias;  // [w_rows] or null
  void* y;           // [rows, n]
  int64_t y_stride;
  int32_t rows;
  int32_t n;
  bool y_is_f32;
  bool gated;
};

// The upper of the two weight rows of thread threadIdx.x, one of 256; the other one is 8 below. In
// a gated product they are gate and up of one output.
__device__ __forceinline__ int64_t WeightRow(int64_t tile) {
  return tile * kSkinnyTileRows + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
}

// Of both rows.
template <HalfType kType>
__device__ __forceinline__ float2 LoadBias(const LinearOutput& out, int64_t tile) {
  using Element = typename HalfTraits<kType>::Element;
  const auto* bias = static_cast<const Element*>(out.bias);
  const int64_t low = WeightRow(tile);
  const int64_t high = low + 8;
  const int64_t w_rows = out.gated ? int64_t{2} * out.n : out.n;
  float2 loaded = {0, 0};
  if (bias == nullptr) return loaded;
  if (low < w_rows) loaded.x = HalfTraits<kType>::ToFloat(bias[low]);
  if (high < w_rows) loaded.y = HalfTraits<kType>::ToFloat(bias[high]);
  return loaded;
}

__device__ __forceinline__ float Silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
__device__ __forceinline__ float Gated(float gate, float up, float2 bias) {
  return Silu(gate + bias.x) * (up + bias.y);
}

template <HalfType kType>
__device__ __forceinline__ void Store(const LinearOutput& out, int32_t row, int64_t n,
                                      float value) {
  const int64_t at = row * out.y_stride + n;
  if (out.y_is_f32) {
    static_cast<float*>(out.y)[at] = value;
  } else {
    static_cast<typename HalfTraits<kType>::Element*>(out.y)[at] =
        HalfTraits<kType>::FromFloat(value);
  }
}

// All of a tile whose tokens begin at `first_row`, d in the layout of wgmma, tokens its columns.
template <int kAccumulators, HalfType kType>
__device__ __forceinline__ void FinishTile(const LinearOutput& out, int64_t tile, int32_t first_row,
                                           const float (&d)[kAccumulators]) {
  const int lane = threadIdx.x % 32;
  const int64_t low = WeightRow(tile);
  const int64_t high = low + 8;
  const float2 bias = LoadBias<kType>(out, tile);
#pragma unroll
  for (int i = 0; i < kAccumulators / 2; ++i) {
    const int at = i / 2 * 4 + i % 2;  // Accumulator of the low row; the high row's is two on.
    const int32_t row = first_row + i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (row >= out.rows) continue;
    if (out.gated) {
      const int64_t n = low / 16 * 8 + lane / 4;
      if (n < out.n) Store<kType>(out, row, n, Gated(d[at], d[at + 2], bias));
    } else {
      if (low < out.n) Store<kType>(out, row, low, d[at] + bias.x);
      if (high < out.n) Store<kType>(out, row, high, d[at + 2] + bias.y);
    }
  }
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SKINNY_LINEAR_EPILOGUE_CUH_
