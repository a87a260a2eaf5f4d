// What the warps of a thread block of decode attention share: parameters, ring, barriers.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_STATE_CUH_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_STATE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/decode_attention/decode_attention_item.h"
#include "kernels/decode_attention/decode_attention_tile.cuh"

namespace baton::kernels::decode {

constexpr int kConsumerThreads = kConsumerWarps * 32;
constexpr int kThreads = kConsumerThreads + 32;
constexpr int kStagesMax = 16;
constexpr int kEdgeBoxTokens = 16;  // Of tiles that are needed in part.

struct KernelParams {
  CUtensorMap kv_map;       // The pool as rows of head_dim; boxes of min(block_tokens, 64) tokens.
  CUtensorMap kv_edge_map;  // Boxes of kEdgeBoxTokens.
  const void* q;
  void* out;
  int64_t q_stride;
  int64_t out_stride;
  const DecodeItem* items;
  const int32_t* block_tables;
  // Rows of the tensor maps: row = block * block_rows + layer_row + kv_head * head_rows + token, V
  // value_rows further.
  int32_t block_rows;
  int32_t layer_row;
  int32_t head_rows;
  int32_t value_rows;
  int32_t block_tokens_log2;
  int32_t num_heads;
  int32_t group;
  int32_t head_dim;
  int32_t window;
  int32_t split_tiles;  // kFixed: tiles of a split; kBalanced: beyond every item.
  ScoreScale scale;
  int32_t num_stages;
  bool metadata_is_early;   // Items and block tables may be read ahead of the wait.
  int32_t partial_rows;     // Rows of a partial result in the workspace.
  int32_t* counters;        // [units that several thread blocks share], zero between launches
  float2* partial_softmax;  // [partials, partial_rows]: maximum, sum
  float* partial_out;       // [partials, partial_rows, kHeadDim], unnormalised
};

// Shared memory of a thread block behind the ring; RowState::kQuerySharedBytes follow it.
struct alignas(16) Shared {
  // Sums of four warps meet here, 64 columns of 8 rows at a time; the pitch keeps lanes apart.
  static constexpr int kPitch = 68;
  float acc[kConsumerWarps][8][kPitch];
  float2 softmax[kConsumerWarps][32];  // Maximum and sum of each row.
  uint64_t full[kStagesMax];
  uint64_t empty[kStagesMax];
  int32_t is_last;
};

template <int kHeadDim>
constexpr int StageBytes() {
  return 2 * (kHeadDim / 64) * kPanelBytes;
}

// Position in the ring: stage, and parity of the phase that the consumer waits for.
struct RingCursor {
  uint32_t stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(uint32_t num_stages) {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
}

__device__ __forceinline__ DecodeItem LoadItem(const DecodeItem* item) {
  DecodeItem copy;
  const auto* from = reinterpret_cast<const int4*>(item);
  auto* to = reinterpret_cast<int4*>(&copy);
#pragma unroll
  for (int i = 0; i < 3; ++i) to[i] = __ldg(from + i);
  return copy;
}

__device__ __forceinline__ bool HasTiles(const DecodeItem& item) {
  return item.num_rows > 0 && item.kv_head != kDecodeZeroRows;
}

__device__ __forceinline__ KeyLimits LimitsOf(const KernelParams& p, const DecodeItem& item) {
  KeyLimits limits;
  limits.first_position = item.first_position + item.row_begin / p.group;
  limits.end = item.first_position + (item.row_begin + item.num_rows - 1) / p.group + 1;
  limits.window = p.window;
  limits.row_in_token = item.row_begin % p.group;
  limits.group = p.group;
  limits.begin = p.window > 0 ? max(0, limits.first_position - p.window + 1) : 0;
  return limits;
}

}  // namespace baton::kernels::decode

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_STATE_CUH_
