// What a consumer warp of decode attention does with one tile of keys: 16 of its 64 tokens, for up
// to 8 * kRowBlocks query rows, by tensor cores with the operands swapped,
//   S^T[16 tokens, 8 rows] = K Q^T,   O^T[head_dim, 8 rows] += V^T P^T,
// so that eight rows, not sixteen, fill an instruction. Every warp keeps its own online softmax
// [Milakov and Gimelshein 2018] over the tokens it has seen; they meet at the end of a split.
//
// Layout of registers, with g = lane / 4 and c = lane % 4: score s[.][0], s[.][1] are token g, rows
// 2c and 2c+1; s[.][2], s[.][3] token g + 8. Accumulators: head_dim g and g + 8, rows 2c and 2c+1.
// So the factors of a row are in the lane that needs them, and a maximum over tokens is over lanes
// of equal c.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_TILE_CUH_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_TILE_CUH_

#include <cstdint>

#include "kernels/decode_attention/decode_attention_item.h"
#include "kernels/launch/half_types.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"

namespace baton::kernels::decode {

inline constexpr int kWarpTokens = 16;
inline constexpr int kConsumerWarps = kDecodeTileTokens / kWarpTokens;
// A tile of K or V lies in shared memory as panels of 64 columns, 128 bytes a token, in the copy
// engine's 128-byte swizzle: 16-byte chunk c of token t is at chunk c ^ (t % 8).
inline constexpr int kPanelBytes = kDecodeTileTokens * 128;
inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Exp2(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Maximum of scores, with nothing seen counting as 0: then exp2(-infinity - it) is 0, not NaN.
__device__ __forceinline__ float Finite(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

template <int kHeadDim, int kRowBlocks>
struct RowState {
  static constexpr int kSteps = kHeadDim / 16;
  // Fragments of Q^T: in registers, or when those do not suffice in shared memory, [kRowBlocks,
  // kSteps, 32] of 8 bytes, one copy for all warps.
  static constexpr bool kQueryInShared = kRowBlocks == 4;
  static constexpr int kQuerySharedBytes = kQueryInShared ? kRowBlocks * kSteps * 256 : 0;
  uint2 q[kQueryInShared ? 1 : kRowBlocks][kSteps];
  const uint2* q_shared = nullptr;  // Of this lane.
  float acc[kRowBlocks][kSteps][4];
  float maximum[kRowBlocks][2];  // Of this warp's tokens, in log2 units.
  float sum[kRowBlocks][2];      // Of this lane's tokens: lanes of equal c add up to the warp's.

  __device__ __forceinline__ uint2 Query(int row_block, int step) const {
    if constexpr (kQueryInShared) {
      return q_shared[(row_block * kSteps + step) * 32];
    } else {
      return q[row_block][step];
    }
  }

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[b][j][i] = 0;
      }
      maximum[b][0] = maximum[b][1] = -INFINITY;
      sum[b][0] = sum[b][1] = 0;
    }
  }
};

struct ScoreScale {
  float scale;    // Score to log2 units, or to the argument of tanh when there is a cap.
  float softcap;  // 0, or the cap in log2 units.

  __device__ __forceinline__ float operator()(float score) const {
    const float x = score * scale;
    if (softcap == 0) return x;
    // tanh(x) = 1 - 2 / (exp(2x) + 1), right in both limits.
    return softcap * (1.0f - __fdividef(2.0f, Exp2(x * (2 * kLog2E)) + 1.0f));
  }
};

// The keys that the rows of an item see: none sees a key outside of [begin, end), row r sees
// [position(r) - window + 1, position(r)].
struct KeyLimits {
  int32_t begin;
  int32_t end;
  int32_t first_position;  // Of the item's first row.
  int32_t window;
  int32_t row_in_token;  // Of the item's first row among the `group` rows of its token.
  int32_t group;

  __device__ __forceinline__ int32_t Position(int row) const {
    return first_position + (row_in_token + row) / group;
  }
  // True when some row does not see all of the 16 tokens from `token`.
  __device__ __forceinline__ bool IsEdge(int32_t token) const {
    return token + kWarpTokens - 1 > first_position || (window > 0 && token <= end - 1 - window);
  }
};

template <HalfType kType, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void Scores(const RowState<kHeadDim, kRowBlocks>& state, uint32_t keys,
                                       int warp, int lane, float (&s)[kRowBlocks][4]) {
  // Two chains of sums: half the latency. The same for every kRowBlocks, or bits would differ.
  float odd[kRowBlocks][4];
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[b][i] = odd[b][i] = 0;
  }
  const uint32_t row = keys + (warp * kWarpTokens + (lane & 15)) * 128;
  const uint32_t chunk = ((lane >> 4) ^ (lane & 7)) << 4;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t k[4];
    ptx::LoadMatrixX4(k, row + step / 4 * kPanelBytes + (chunk ^ (step % 4 * 32)));
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      const uint2 q = state.Query(b, step);
      ptx::MmaM16N8K16<kType>(step % 2 == 0 ? s[b] : odd[b], k, q.x, q.y);
    }
  }
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[b][i] += odd[b][i];
  }
}

// Scores of keys that a row does not see become -infinity. `token` is the lane's first.
template <int kRowBlocks>
__device__ __forceinline__ void MaskScores(const KeyLimits& limits, int32_t token, int lane,
                                           float (&s)[kRowBlocks][4]) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t j = token + (i / 2) * 8;
      const int32_t position = limits.Position(b * 8 + 2 * (lane % 4) + i % 2);
      const bool seen =
          j <= position && j < limits.end && (limits.window == 0 || j > position - limits.window);
      if (!seen) s[b][i] = -INFINITY;
    }
  }
}

// Scores become exp2(score - maximum), the state follows.
template <int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void OnlineSoftmax(RowState<kHeadDim, kRowBlocks>& state,
                                              float (&s)[kRowBlocks][4]) {
  float factor[kRowBlocks][2];
  bool moved = false;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = fmaxf(s[b][i], s[b][i + 2]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
      }
      largest = fmaxf(largest, state.maximum[b][i]);
      const float base = Finite(largest);
      factor[b][i] = Exp2(state.maximum[b][i] - base);
      moved |= largest != state.maximum[b][i];
      state.maximum[b][i] = largest;
      s[b][i] = Exp2(s[b][i] - base);
      s[b][i + 2] = Exp2(s[b][i + 2] - base);
      state.sum[b][i] = state.sum[b][i] * factor[b][i] + (s[b][i] + s[b][i + 2]);
    }
  }
  // A factor of a maximum that stays is exactly 1, so leaving it out changes no bits.
  if (__any_sync(~0u, moved)) {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < kHeadDim / 16; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.acc[b][j][i] *= factor[b][i % 2];
      }
    }
  }
}

// Both halves of a pair of 16-bit values whose tokens lie within [begin, end).
__device__ __forceinline__ uint32_t PairMask(const KeyLimits& limits, int32_t token) {
  const auto inside = [&](int32_t t) { return t >= limits.begin && t < limits.end; };
  return (inside(token) ? 0xFFFFu : 0u) | (inside(token + 1) ? 0xFFFF0000u : 0u);
}

// acc += V^T P^T. kEdge: what lies outside of the limits may be anything, and 0 * NaN is NaN.
template <HalfType kType, bool kEdge, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void AddValues(RowState<kHeadDim, kRowBlocks>& state, uint32_t values,
                                          const KeyLimits& limits, int32_t token, int warp,
                                          int lane, const float (&s)[kRowBlocks][4]) {
  uint32_t p[kRowBlocks][2];
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
    p[b][0] = ptx::TransposeMatrix(PackPair<kType>(s[b][0], s[b][1]));
    p[b][1] = ptx::TransposeMatrix(PackPair<kType>(s[b][2], s[b][3]));
  }
  const uint32_t low = kEdge ? PairMask(limits, token + 2 * (lane % 4)) : 0;
  const uint32_t high = kEdge ? PairMask(limits, token + 2 * (lane % 4) + 8) : 0;
  const int row_in_warp = (lane & 7) + ((lane >> 4) << 3);
  const uint32_t row = values + (warp * kWarpTokens + row_in_warp) * 128;
  const uint32_t chunk = (((lane >> 3) & 1) ^ (lane & 7)) << 4;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t v[4];
    ptx::LoadMatrixX4Transposed(v, row + step / 4 * kPanelBytes + (chunk ^ (step % 4 * 32)));
    if constexpr (kEdge) {
      v[0] &= low;
      v[1] &= low;
      v[2] &= high;
      v[3] &= high;
    }
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      ptx::MmaM16N8K16<kType>(state.acc[b][step], v, p[b][0], p[b][1]);
    }
  }
}

// The warp's part of the tile whose first token is `tile_token`; K and V are panels at these
// addresses in shared memory.
template <HalfType kType, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void AddTile(RowState<kHeadDim, kRowBlocks>& state, uint32_t keys,
                                        uint32_t values, const KeyLimits& limits,
                                        const ScoreScale& scale, int32_t tile_token, int warp,
                                        int lane) {
  const int32_t token = tile_token + warp * kWarpTokens;
  if (token >= limits.end || token + kWarpTokens <= limits.begin) return;
  float s[kRowBlocks][4];
  Scores<kType, kHeadDim, kRowBlocks>(state, keys, warp, lane, s);
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[b][i] = scale(s[b][i]);
  }
  if (limits.IsEdge(token)) {
    MaskScores<kRowBlocks>(limits, token + lane / 4, lane, s);
    OnlineSoftmax<kHeadDim, kRowBlocks>(state, s);
    AddValues<kType, true, kHeadDim, kRowBlocks>(state, values, limits, token, warp, lane, s);
  } else {
    OnlineSoftmax<kHeadDim, kRowBlocks>(state, s);
    AddValues<kType, false, kHeadDim, kRowBlocks>(state, values, limits, token, warp, lane, s);
  }
}

}  // namespace baton::kernels::decode

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_TILE_CUH_
