// The four consumer warps of decode attention: from tiles in the ring to rows of `out`.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CONSUMER_CUH_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CONSUMER_CUH_

#include <cstdint>

#include "kernels/decode_attention/decode_attention_state.cuh"
#include "kernels/decode_attention/decode_attention_tile.cuh"
#include "kernels/launch/half_types.cuh"
#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace baton::kernels::decode {

// Fragments of Q^T of eight rows: lane (g, c) takes row g, columns 2c, 2c+1 and 2c+8, 2c+9 of each
// step; rows beyond the item's and columns beyond head_dim are zero.
template <int kSteps>
__device__ __forceinline__ void LoadQueryRows(const KernelParams& p, const DecodeItem& item,
                                              int row_block, int lane, uint2 (&q)[kSteps]) {
  const int row = row_block * 8 + lane / 4;
  const int unit_row = item.row_begin + row;
  const int64_t token = item.query_start + unit_row / p.group;
  const int head = item.kv_head * p.group + unit_row % p.group;
  const auto* from = reinterpret_cast<const uint16_t*>(p.q) + token * p.q_stride +
                     int64_t{head} * p.head_dim + 2 * (lane % 4);
  const auto load = [&](int column) -> uint32_t {
    return row < item.num_rows && column < p.head_dim
               ? *reinterpret_cast<const uint32_t*>(from + column)
               : 0;
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    q[step] = make_uint2(load(step * 16), load(step * 16 + 8));
  }
}

template <int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void LoadQuery(const KernelParams& p, const DecodeItem& item,
                                          uint2* q_shared, int warp, int lane,
                                          RowState<kHeadDim, kRowBlocks>& state) {
  using State = RowState<kHeadDim, kRowBlocks>;
  if constexpr (State::kQueryInShared) {
    // A row block a warp. The barriers of the split before keep this from its last readers.
    LoadQueryRows<State::kSteps>(p, item, warp, lane, state.q[0]);
#pragma unroll
    for (int step = 0; step < State::kSteps; ++step) {
      q_shared[(warp * State::kSteps + step) * 32 + lane] = state.q[0][step];
    }
    state.q_shared = q_shared + lane;
    ConsumerBarrier();
  } else {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      LoadQueryRows<State::kSteps>(p, item, b, lane, state.q[b]);
    }
  }
}

template <HalfType kType>
__device__ __forceinline__ void StoreOut(const KernelParams& p, const DecodeItem& item, int row,
                                         int column, const float4& sums, float sum) {
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  const int unit_row = item.row_begin + row;
  const int64_t token = item.query_start + unit_row / p.group;
  const int head = item.kv_head * p.group + unit_row % p.group;
  auto* to = reinterpret_cast<uint16_t*>(p.out) + token * p.out_stride +
             int64_t{head} * p.head_dim + column;
  *reinterpret_cast<uint2*>(to) = make_uint2(PackPair<kType>(sums.x * inverse, sums.y * inverse),
                                             PackPair<kType>(sums.z * inverse, sums.w * inverse));
}

// Maximum and sum of a row over the four warps.
__device__ __forceinline__ float2 RowSoftmax(const Shared& shared, int row) {
  float maximum = -INFINITY;
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) maximum = fmaxf(maximum, shared.softmax[w][row].x);
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) {
    const float2 part = shared.softmax[w][row];
    sum = fmaf(Exp2(part.x - Finite(maximum)), part.y, sum);
  }
  return make_float2(maximum, sum);
}

// Puts (maximum, sum) of the warp's rows into shared memory; returns when all warps have.
template <int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void ShareSoftmax(const RowState<kHeadDim, kRowBlocks>& state,
                                             Shared& shared, int warp, int lane) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = state.sum[b][i];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
      if (lane < 4) {
        shared.softmax[warp][b * 8 + 2 * lane + i] = make_float2(state.maximum[b][i], sum);
      }
    }
  }
  ConsumerBarrier();
}

// Ends a split: adds up the four warps, and writes `out` (a unit of one split) or partial result
// `partial`.
template <HalfType kType, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void FinishSplit(const KernelParams& p, const DecodeItem& item,
                                            int32_t partial,
                                            const RowState<kHeadDim, kRowBlocks>& state,
                                            Shared& shared, int warp, int lane) {
  ShareSoftmax<kHeadDim, kRowBlocks>(state, shared, warp, lane);
  const int out_row = threadIdx.x / 16;
  const int out_column = threadIdx.x % 16 * 4;
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
    const int row = b * 8 + out_row;
    const float2 softmax = RowSoftmax(shared, row);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float maximum = RowSoftmax(shared, b * 8 + 2 * (lane % 4) + i).x;
      factor[i] = Exp2(state.maximum[b][i] - Finite(maximum));
    }
#pragma unroll
    for (int panel = 0; panel < kHeadDim / 64; ++panel) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          shared.acc[warp][2 * (lane % 4) + i % 2][j * 16 + i / 2 * 8 + lane / 4] =
              state.acc[b][panel * 4 + j][i] * factor[i % 2];
        }
      }
      ConsumerBarrier();
      float4 sums = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) {
        const float4 part = *reinterpret_cast<const float4*>(&shared.acc[w][out_row][out_column]);
        sums = make_float4(sums.x + part.x, sums.y + part.y, sums.z + part.z, sums.w + part.w);
      }
      ConsumerBarrier();
      const int column = panel * 64 + out_column;
      if (row >= item.num_rows || column >= p.head_dim) continue;
      if (item.num_splits == 1) {
        StoreOut<kType>(p, item, row, column, sums, softmax.y);
        continue;
      }
      const int64_t index = int64_t{partial} * p.partial_rows + row;
      *reinterpret_cast<float4*>(p.partial_out + index * kHeadDim + column) = sums;
      if (column == 0) p.partial_softmax[index] = softmax;
    }
  }
}

// True in all consumer threads of the thread block that ends its item of the unit last; the partial
// results of all items are then visible to it.
__device__ __forceinline__ bool ArriveAtUnit(const KernelParams& p, const DecodeItem& item,
                                             Shared& shared) {
  if (item.num_items == 1) {
    ConsumerBarrier();
    return true;
  }
  ConsumerBarrier();
  if (threadIdx.x == 0) {
    int32_t* counter = p.counters + item.counter;
    const bool is_last = ptx::AtomicAddAcquireRelease(counter, 1) == item.num_items - 1;
    if (is_last) *counter = 0;
    shared.is_last = is_last;
  }
  ConsumerBarrier();
  return shared.is_last != 0;
}

// Adds up the partial results of a unit in ascending order and writes `out`.
template <HalfType kType, int kHeadDim>
__device__ __forceinline__ void MergeSplits(const KernelParams& p, const DecodeItem& item) {
  constexpr int kColumns = kHeadDim / 4;
  constexpr int kBatch = 16;  // Loads in flight.
  for (int i = threadIdx.x; i < item.num_rows * kColumns; i += kConsumerThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns * 4;
    if (column >= p.head_dim) continue;
    const int64_t first = int64_t{item.unit_partial} * p.partial_rows + row;
    float maximum = -INFINITY;
    float sum = 0;
    float4 sums = make_float4(0, 0, 0, 0);
    for (int begin = 0; begin < item.num_splits; begin += kBatch) {
      float2 softmax[kBatch];
      float4 part[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int split = min(begin + s, item.num_splits - 1);
        const int64_t index = first + int64_t{split} * p.partial_rows;
        softmax[s] = __ldcg(p.partial_softmax + index);
        // Beyond the last split: the last one again, with a factor of 0. A branch instead would let
        // the compiler move each load behind the branch before it, one after the other.
        if (begin + s >= item.num_splits) softmax[s] = make_float2(-INFINITY, 0.0f);
        part[s] =
            __ldcg(reinterpret_cast<const float4*>(p.partial_out + index * kHeadDim + column));
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const float larger = fmaxf(maximum, softmax[s].x);
        const float old_factor = Exp2(maximum - Finite(larger));
        const float factor = Exp2(softmax[s].x - Finite(larger));
        maximum = larger;
        sum = fmaf(sum, old_factor, factor * softmax[s].y);
        sums.x = fmaf(sums.x, old_factor, factor * part[s].x);
        sums.y = fmaf(sums.y, old_factor, factor * part[s].y);
        sums.z = fmaf(sums.z, old_factor, factor * part[s].z);
        sums.w = fmaf(sums.w, old_factor, factor * part[s].w);
      }
    }
    StoreOut<kType>(p, item, row, column, sums, sum);
  }
}

// Padding: num_rows tokens of `out`, all heads.
__device__ __forceinline__ void ZeroRows(const KernelParams& p, const DecodeItem& item) {
  const int chunks = p.num_heads * p.head_dim / 8;
  for (int row = 0; row < item.num_rows; ++row) {
    auto* to = reinterpret_cast<uint4*>(reinterpret_cast<uint16_t*>(p.out) +
                                        int64_t{item.query_start + row} * p.out_stride);
    for (int i = threadIdx.x; i < chunks; i += kConsumerThreads) to[i] = make_uint4(0, 0, 0, 0);
  }
}

template <HalfType kType, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void ConsumeItem(const KernelParams& p, const DecodeItem& item,
                                            const uint8_t* ring, Shared& shared, RingCursor& cursor,
                                            RowState<kHeadDim, kRowBlocks>& state) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const KeyLimits limits = LimitsOf(p, item);
  LoadQuery<kHeadDim, kRowBlocks>(p, item, reinterpret_cast<uint2*>(&shared + 1), warp, lane,
                                  state);
  state.Reset();
  int32_t partial = item.partial;
  int32_t split_end = (item.tile_begin / p.split_tiles + 1) * p.split_tiles;
  for (int32_t tile = item.tile_begin; tile < item.tile_end; ++tile) {
    ptx::MbarrierWait(&shared.full[cursor.stage], cursor.parity);
    const uint32_t keys = ptx::SharedAddress(ring + cursor.stage * StageBytes<kHeadDim>());
    AddTile<kType, kHeadDim, kRowBlocks>(state, keys, keys + StageBytes<kHeadDim>() / 2, limits,
                                         p.scale, tile * kDecodeTileTokens, warp, lane);
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&shared.empty[cursor.stage]);
    cursor.Advance(p.num_stages);
    if (tile + 1 == split_end || tile + 1 == item.tile_end) {
      FinishSplit<kType, kHeadDim, kRowBlocks>(p, item, partial, state, shared, warp, lane);
      state.Reset();
      ++partial;
      split_end += p.split_tiles;
    }
  }
}

template <HalfType kType, int kHeadDim, int kRowBlocks>
__device__ __forceinline__ void Consume(const KernelParams& p, const uint8_t* ring,
                                        Shared& shared) {
  RingCursor cursor;
  RowState<kHeadDim, kRowBlocks> state;
  if (!p.metadata_is_early) ptx::DependencyWait();
  DecodeItem item = LoadItem(p.items + blockIdx.x);
  if (p.metadata_is_early) ptx::DependencyWait();
  while (true) {
    if (HasTiles(item)) {
      ConsumeItem<kType, kHeadDim, kRowBlocks>(p, item, ring, shared, cursor, state);
      if (item.num_splits > 1 && ArriveAtUnit(p, item, shared)) {
        MergeSplits<kType, kHeadDim>(p, item);
      }
    } else if (item.num_rows > 0) {
      ZeroRows(p, item);
    }
    if (item.next < 0) return;
    item = LoadItem(p.items + item.next);
  }
}

}  // namespace baton::kernels::decode

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CONSUMER_CUH_
