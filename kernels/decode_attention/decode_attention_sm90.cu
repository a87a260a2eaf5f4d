// out[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k_j)) v_j, q and out [num_tokens, num_heads,
// head_dim], K and V [.., num_kv_heads, 2, block_tokens, head_dim] in blocks of a pool.
//
// Mapping: thread blocks stay resident and work through a list of items (decode_attention_plan.h):
// an item is a range of 64-key tiles of one KV head of one sequence, for up to 8 * kRowBlocks query
// rows. One warp is the producer: it looks up blocks and fills a ring of tiles in shared memory by
// the copy engine, across the borders of items, as far ahead as the ring reaches. Four warps
// consume, each 16 tokens of every tile, with a softmax of its own (decode_attention_tile.cuh). At
// the end of a split the four add up in shared memory; a unit of one split is then written out,
// others leave (maximum, sum, unnormalised out) in the workspace, and the thread block that
// finishes the unit last adds them up in ascending order. The order of all sums is fixed: results
// are deterministic.
//
// Bytes: K and V once a unit: 4 * head_dim a token and KV head, q and out, and 4 * head_dim + 8
// written and read a row and split. FLOPs: 4 * head_dim a (row, head, key): at 32 rows a KV head 32
// a byte, far below what mma.sync does. So bound by memory: 64 x 4096 tokens, 8 KV heads of
// 128: 1.07 GB, 256 us at 4.2 TB/s.
//
// Limits: head_dim a multiple of 8 up to 256, computed as 64, 128 or 256; 1 to 8 query rows a
// sequence. Prior art: Flash-Decoding (split over the keys), FlashInfer (plan and run, work lists),
// stream-K (Osama et al. 2023: equal contiguous runs), FlashMLA.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/decode_attention/decode_attention_cuda.h"
#include "kernels/decode_attention/decode_attention_tile.cuh"
#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace baton::kernels {
namespace decode {

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

// ---- Producer -----------------------------------------------------------------------------------

// The 64 entries of a block table around the tile that is being fetched, two a lane.
struct BlockIds {
  const int32_t* table;
  int32_t first;  // Block of the sequence in lane 0 of `ids`.
  int32_t last;   // Last block that may be asked for.
  int32_t ids;
  int32_t next_ids;

  __device__ __forceinline__ int32_t Load(int32_t block) const {
    return block <= last ? __ldg(table + block) : 0;
  }
  __device__ __forceinline__ void Begin(const int32_t* block_table, int32_t first_block,
                                        int32_t last_block, int lane) {
    table = block_table;
    first = first_block;
    last = last_block;
    ids = Load(first + lane);
    next_ids = Load(first + 32 + lane);
  }
  // All lanes; `tile_block` (the tile's first) only ascends.
  __device__ __forceinline__ void MoveTo(int32_t tile_block, int lane) {
    if (tile_block < first + 32) return;
    first += 32;
    ids = next_ids;
    next_ids = Load(first + 32 + lane);
  }
};

// Each lane fetches one box of the tile: chunk of tokens, K or V, panel of 64 columns.
template <int kHeadDim>
__device__ __forceinline__ void FetchTile(const KernelParams& p, const DecodeItem& item,
                                          const KeyLimits& limits, BlockIds& blocks, int32_t tile,
                                          uint8_t* stage, uint64_t* full, int lane) {
  constexpr int kPanels = kHeadDim / 64;
  const int32_t tile_token = tile * kDecodeTileTokens;
  const bool edge = tile_token < limits.begin || tile_token + kDecodeTileTokens > limits.end;
  const int chunk_log2 = edge ? 4 : min(p.block_tokens_log2, 6);
  const int chunk = lane / (2 * kPanels);
  const int is_value = lane / kPanels % 2;
  const int panel = lane % kPanels;
  const int32_t token = tile_token + (chunk << chunk_log2);
  const bool active = chunk < kDecodeTileTokens >> chunk_log2 && token < limits.end &&
                      token + (1 << chunk_log2) > limits.begin;
  blocks.MoveTo(tile_token >> p.block_tokens_log2, lane);
  const int32_t block = token >> p.block_tokens_log2;
  const int32_t id = __shfl_sync(~0u, blocks.ids, (block - blocks.first) & 31);
  const int num_boxes = __popc(__ballot_sync(~0u, active));
  if (lane == 0) ptx::MbarrierArriveExpectBytes(full, (num_boxes * 128) << chunk_log2);
  __syncwarp();
  if (!active) return;
  const int32_t row = id * p.block_rows + p.layer_row + item.kv_head * p.head_rows +
                      is_value * p.value_rows + (token & ((1 << p.block_tokens_log2) - 1));
  uint8_t* to = stage + (is_value * kPanels + panel) * kPanelBytes + ((chunk * 128) << chunk_log2);
  ptx::TmaLoad2d(to, edge ? &p.kv_edge_map : &p.kv_map, panel * 64, row, full, ptx::kL2EvictFirst);
}

template <int kHeadDim>
__device__ __forceinline__ void Produce(const KernelParams& p, uint8_t* ring, Shared& shared) {
  const int lane = threadIdx.x % 32;
  RingCursor cursor;
  BlockIds blocks;
  for (int32_t index = blockIdx.x; index >= 0;) {
    const DecodeItem item = LoadItem(p.items + index);
    index = item.next;
    if (item.num_rows == 0 || item.kv_head == kDecodeZeroRows) continue;
    const KeyLimits limits = LimitsOf(p, item);
    const int32_t first_block = (item.tile_begin * kDecodeTileTokens) >> p.block_tokens_log2;
    blocks.Begin(p.block_tables + item.block_table, first_block,
                 (limits.end - 1) >> p.block_tokens_log2, lane);
    for (int32_t tile = item.tile_begin; tile < item.tile_end; ++tile) {
      ptx::MbarrierWait(&shared.empty[cursor.stage], cursor.parity ^ 1);
      FetchTile<kHeadDim>(p, item, limits, blocks, tile,
                          ring + cursor.stage * StageBytes<kHeadDim>(), &shared.full[cursor.stage],
                          lane);
      cursor.Advance(p.num_stages);
    }
  }
  // All reads of this thread block are under way: what follows may take the memory's time.
  ptx::DependencyTrigger();
}

// ---- Consumers ----------------------------------------------------------------------------------

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
  __threadfence();
  ConsumerBarrier();
  if (threadIdx.x == 0) {
    int32_t* counter = p.counters + item.counter;
    const bool is_last = atomicAdd(counter, 1) == item.num_items - 1;
    if (is_last) *counter = 0;
    shared.is_last = is_last;
  }
  ConsumerBarrier();
  const bool is_last = shared.is_last != 0;
  if (is_last) __threadfence();
  return is_last;
}

// Adds up the partial results of a unit in ascending order and writes `out`.
template <HalfType kType, int kHeadDim>
__device__ __forceinline__ void MergeSplits(const KernelParams& p, const DecodeItem& item) {
  constexpr int kColumns = kHeadDim / 4;
  constexpr int kBatch = 8;  // Loads in flight.
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
        part[s] =
            __ldcg(reinterpret_cast<const float4*>(p.partial_out + index * kHeadDim + column));
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (begin + s >= item.num_splits) break;
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
  DecodeItem item = LoadItem(p.items + blockIdx.x);
  while (true) {
    if (item.kv_head == kDecodeZeroRows) {
      ZeroRows(p, item);
    } else if (item.num_rows > 0) {
      ConsumeItem<kType, kHeadDim, kRowBlocks>(p, item, ring, shared, cursor, state);
      if (item.num_splits > 1 && ArriveAtUnit(p, item, shared)) {
        MergeSplits<kType, kHeadDim>(p, item);
      }
    }
    if (item.next < 0) return;
    item = LoadItem(p.items + item.next);
  }
}

// Thread blocks a multiprocessor, as registers and the ring allow.
constexpr int BlocksPerSm(int head_dim, int row_blocks) {
  return head_dim <= 128 && head_dim * row_blocks <= 256 ? 2 : 1;
}

template <HalfType kType, int kHeadDim, int kRowBlocks>
__global__ void __launch_bounds__(kThreads, BlocksPerSm(kHeadDim, kRowBlocks))
    DecodeAttentionKernel(const __grid_constant__ KernelParams p) {
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  auto& shared = *reinterpret_cast<Shared*>(shared_memory + p.num_stages * StageBytes<kHeadDim>());
  if (threadIdx.x == 0) {
    ptx::TmaPrefetchDescriptor(&p.kv_map);
    ptx::TmaPrefetchDescriptor(&p.kv_edge_map);
    for (int stage = 0; stage < p.num_stages; ++stage) {
      ptx::MbarrierInit(&shared.full[stage], 1);
      ptx::MbarrierInit(&shared.empty[stage], kConsumerWarps);
    }
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  ptx::DependencyWait();
  if (threadIdx.x >= kConsumerThreads) {
    Produce<kHeadDim>(p, shared_memory, shared);
  } else {
    Consume<kType, kHeadDim, kRowBlocks>(p, shared_memory, shared);
  }
}

// ---- Launcher -----------------------------------------------------------------------------------

constexpr int64_t kAlign = 256;
constexpr int64_t AlignUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool IsSupported(const DecodeAttentionShape& s) {
  return s.num_kv_heads > 0 && s.num_heads > 0 && s.num_heads % s.num_kv_heads == 0 &&
         s.head_dim > 0 && s.head_dim % 8 == 0 && s.head_dim <= kDecodeHeadDimMax &&
         s.query_length_max > 0 && s.query_length_max <= kDecodeQueryLengthMax && s.window >= 0 &&
         s.num_heads / s.num_kv_heads <= 1024;
}

int32_t PartialRows(const DecodeAttentionShape& shape) {
  const int32_t rows = shape.num_heads / shape.num_kv_heads * shape.query_length_max;
  return std::min(rows, DecodeRowsPerItem(shape));
}

struct Configuration {
  int32_t blocks_per_sm;
  int32_t num_stages;
  size_t shared_bytes;
};

Configuration Configure(const DecodeAttentionShape& shape, const DecodeAttentionTuning& tuning) {
  const int32_t head_dim = DecodePaddedHeadDim(shape.head_dim);
  const int32_t row_blocks = DecodeRowsPerItem(shape) / 8;
  const int32_t blocks_per_sm_max = BlocksPerSm(head_dim, row_blocks);
  Configuration c = {};
  c.blocks_per_sm = tuning.blocks_per_sm > 0 ? std::min(tuning.blocks_per_sm, blocks_per_sm_max)
                                             : blocks_per_sm_max;
  const int32_t stage_bytes = 4 * kDecodeTileTokens * head_dim;
  // RowState::kQuerySharedBytes.
  const auto other_bytes =
      static_cast<int32_t>(sizeof(Shared)) + (row_blocks == 4 ? row_blocks * head_dim * 16 : 0);
  // Of the 228 KiB of a multiprocessor 1 KiB goes to each thread block.
  const int32_t ring_bytes_max = 228 * 1024 / c.blocks_per_sm - 1024 - other_bytes;
  c.num_stages = std::min({ring_bytes_max / stage_bytes, kStagesMax,
                           tuning.num_stages > 0 ? tuning.num_stages : kStagesMax});
  c.shared_bytes = static_cast<size_t>(c.num_stages * stage_bytes + other_bytes);
  return c;
}

KernelStatus Check(const DecodeAttentionParams& p) {
  const auto aligned = [](const void* pointer, uintptr_t to) {
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % to == 0;
  };
  const PagedKv16& kv = p.kv;
  if (!IsSupported(p.shape) || kv.head_dim != p.shape.head_dim || kv.block_tokens_log2 < 4 ||
      kv.num_kv_heads != p.shape.num_kv_heads) {
    return KernelStatus::kUnsupported;
  }
  if (!aligned(p.q, 16) || !aligned(p.out, 16) || !aligned(kv.base, 16) || !aligned(p.items, 16) ||
      !aligned(p.workspace, kAlign) || p.block_tables == nullptr || p.grid_size <= 0 ||
      p.partials_max < 0 || p.q_stride % 8 != 0 || p.out_stride % 8 != 0 ||
      p.split_tokens % kDecodeTileTokens != 0 || p.split_tokens < 0) {
    return KernelStatus::kInvalidArgument;
  }
  const int64_t d = kv.head_dim;
  if (kv.block_stride % d != 0 || kv.layer_offset % d != 0 || kv.head_stride % d != 0 ||
      kv.value_offset % d != 0) {
    return KernelStatus::kInvalidArgument;
  }
  // Rows are coordinates of the copy engine.
  return kv.block_stride / d * kv.num_blocks > INT32_MAX ? KernelStatus::kUnsupported
                                                         : KernelStatus::kOk;
}

KernelStatus FillMaps(const DecodeAttentionParams& p, KernelParams* k) {
  TensorMap2d map;
  map.base = p.kv.base;
  map.type = p.kv.type;
  map.cols = map.row_stride = p.kv.head_dim;
  map.rows = p.kv.block_stride / p.kv.head_dim * p.kv.num_blocks;
  map.box_cols = 64;
  map.box_rows = 1 << std::min(p.kv.block_tokens_log2, 6);
  map.l2_promotion_bytes = p.tuning.l2_promotion_bytes > 0 ? p.tuning.l2_promotion_bytes : 256;
  const KernelStatus status = EncodeTensorMap(map, &k->kv_map);
  if (status != KernelStatus::kOk) return status;
  map.box_rows = kEdgeBoxTokens;
  return EncodeTensorMap(map, &k->kv_edge_map);
}

void FillParams(const DecodeAttentionParams& p, int32_t num_stages, KernelParams* k) {
  const int32_t head_dim = p.kv.head_dim;
  k->q = p.q;
  k->out = p.out;
  k->q_stride = p.q_stride;
  k->out_stride = p.out_stride;
  k->items = p.items;
  k->block_tables = p.block_tables;
  k->block_rows = static_cast<int32_t>(p.kv.block_stride / head_dim);
  k->layer_row = static_cast<int32_t>(p.kv.layer_offset / head_dim);
  k->head_rows = static_cast<int32_t>(p.kv.head_stride / head_dim);
  k->value_rows = static_cast<int32_t>(p.kv.value_offset / head_dim);
  k->block_tokens_log2 = p.kv.block_tokens_log2;
  k->num_heads = p.shape.num_heads;
  k->group = p.shape.num_heads / p.shape.num_kv_heads;
  k->head_dim = head_dim;
  k->window = p.shape.window;
  k->split_tiles = p.split_tokens > 0 ? p.split_tokens / kDecodeTileTokens : 1 << 28;
  k->scale = p.softcap > 0 ? ScoreScale{p.scale / p.softcap, p.softcap * kLog2E}
                           : ScoreScale{p.scale * kLog2E, 0};
  k->num_stages = num_stages;
  k->partial_rows = PartialRows(p.shape);
  auto* workspace = static_cast<uint8_t*>(p.workspace);
  k->counters = reinterpret_cast<int32_t*>(workspace);
  workspace += AlignUp(static_cast<int64_t>(DecodeAttentionCounterBytes(p.grid_size)));
  k->partial_softmax = reinterpret_cast<float2*>(workspace);
  workspace += AlignUp(int64_t{p.partials_max} * k->partial_rows * 8);
  k->partial_out = reinterpret_cast<float*>(workspace);
}

using Kernel = void (*)(KernelParams);

template <HalfType kType>
Kernel KernelFor(int32_t head_dim, int32_t row_blocks) {
  switch (head_dim + row_blocks) {
    case 64 + 1:
      return DecodeAttentionKernel<kType, 64, 1>;
    case 64 + 2:
      return DecodeAttentionKernel<kType, 64, 2>;
    case 64 + 4:
      return DecodeAttentionKernel<kType, 64, 4>;
    case 128 + 1:
      return DecodeAttentionKernel<kType, 128, 1>;
    case 128 + 2:
      return DecodeAttentionKernel<kType, 128, 2>;
    case 128 + 4:
      return DecodeAttentionKernel<kType, 128, 4>;
    case 256 + 1:
      return DecodeAttentionKernel<kType, 256, 1>;
    default:
      return DecodeAttentionKernel<kType, 256, 2>;
  }
}

}  // namespace decode

int32_t DecodeAttentionGrid(const DecodeAttentionShape& shape,
                            const DecodeAttentionTuning& tuning) {
  int device = 0;
  int num_sms = 0;
  if (!decode::IsSupported(shape) || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
  return num_sms * decode::Configure(shape, tuning).blocks_per_sm;
}

size_t DecodeAttentionCounterBytes(int32_t grid_size) {
  return static_cast<size_t>(grid_size) * sizeof(int32_t);
}

size_t DecodeAttentionWorkspaceBytes(const DecodeAttentionShape& shape, int32_t grid_size,
                                     int32_t partials_max) {
  const int64_t rows = int64_t{partials_max} * decode::PartialRows(shape);
  return static_cast<size_t>(
      decode::AlignUp(static_cast<int64_t>(DecodeAttentionCounterBytes(grid_size))) +
      decode::AlignUp(rows * 8) + decode::AlignUp(rows * DecodePaddedHeadDim(shape.head_dim) * 4));
}

KernelStatus DecodeAttention(const DecodeAttentionParams& p, CudaStream stream, LaunchOrder order) {
  KernelStatus status = decode::Check(p);
  if (status != KernelStatus::kOk) return status;
  const decode::Configuration c = decode::Configure(p.shape, p.tuning);
  decode::KernelParams k;
  status = decode::FillMaps(p, &k);
  if (status != KernelStatus::kOk) return status;
  decode::FillParams(p, c.num_stages, &k);
  const int32_t head_dim = DecodePaddedHeadDim(p.shape.head_dim);
  const int32_t row_blocks = DecodeRowsPerItem(p.shape) / 8;
  const decode::Kernel kernel = p.kv.type == HalfType::kBF16
                                    ? decode::KernelFor<HalfType::kBF16>(head_dim, row_blocks)
                                    : decode::KernelFor<HalfType::kF16>(head_dim, row_blocks);
  return Launch({.grid = dim3(static_cast<unsigned>(p.grid_size)),
                 .block = dim3(decode::kThreads),
                 .shared_bytes = c.shared_bytes,
                 .stream = stream,
                 .order = order},
                kernel, k);
}

}  // namespace baton::kernels
