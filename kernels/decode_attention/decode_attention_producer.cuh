// The producer warp of decode attention: looks up blocks and fills the ring of tiles, across the
// borders of items, as far ahead as the ring reaches.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PRODUCER_CUH_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PRODUCER_CUH_

#include <cstdint>

#include "kernels/decode_attention/decode_attention_state.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace baton::kernels::decode {

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
  DecodeItem item;
  KeyLimits limits;
  BlockIds blocks;
  const auto begin_item = [&](int32_t index) {
    item = LoadItem(p.items + index);
    if (!HasTiles(item)) return;
    limits = LimitsOf(p, item);
    blocks.Begin(p.block_tables + item.block_table,
                 (item.tile_begin * kDecodeTileTokens) >> p.block_tokens_log2,
                 (limits.end - 1) >> p.block_tokens_log2, lane);
  };
  if (!p.metadata_is_early) ptx::DependencyWait();
  begin_item(blockIdx.x);
  if (p.metadata_is_early) ptx::DependencyWait();
  while (true) {
    if (HasTiles(item)) {
      for (int32_t tile = item.tile_begin; tile < item.tile_end; ++tile) {
        ptx::MbarrierWait(&shared.empty[cursor.stage], cursor.parity ^ 1);
        FetchTile<kHeadDim>(p, item, limits, blocks, tile,
                            ring + cursor.stage * StageBytes<kHeadDim>(),
                            &shared.full[cursor.stage], lane);
        cursor.Advance(p.num_stages);
      }
    }
    if (item.next < 0) break;
    begin_item(item.next);
  }
  // All reads of this thread block are under way: what follows may take the memory's time.
  ptx::DependencyTrigger();
}

}  // namespace baton::kernels::decode

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PRODUCER_CUH_
