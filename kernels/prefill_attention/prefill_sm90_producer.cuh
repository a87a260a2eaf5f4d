// The producer warpgroup of the wgmma kernel: warp 0 takes work and starts the copies of K and V,
// warp 1 + i fetches the queries of consumer i.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_PRODUCER_CUH_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_PRODUCER_CUH_

#include <cstdint>

#include "kernels/prefill_attention/prefill_sm90_shared.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/proxy_fence.cuh"
#include "kernels/ptx/tma.cuh"

namespace baton::kernels {

// Hands out work, nearly in list order. The first two items of a block are fixed, those of all
// blocks together being the first of the list, the second ones in reverse, so that the block with
// the longest item has the shortest second one; the others come from a counter. The block that
// finds the list empty last sets the counters back to zero.
class WorkDispenser {
 public:
  __device__ __forceinline__ explicit WorkDispenser(int32_t* counters)
      : counters_(counters), next_(Block() - 2 * Blocks()) {}

  // The next index; asks for the one after it, which takes a while to arrive.
  __device__ __forceinline__ int32_t Next() {
    const int32_t now = __shfl_sync(0xFFFFFFFF, next_, 0);
    if (now == Block() - 2 * Blocks()) {
      next_ = -1 - Block();
    } else if (threadIdx.x % 32 == 0) {
      next_ = atomicAdd(&counters_[0], 1);
    }
    return 2 * Blocks() + now;
  }
  // REQUIRES: no more calls of Next.
  __device__ __forceinline__ void Finish() const {
    if (threadIdx.x % 32 != 0) return;
    __threadfence();
    if (atomicAdd(&counters_[1], 1) == Blocks() - 1) {
      atomicExch(&counters_[0], 0);
      atomicExch(&counters_[1], 0);
    }
  }

 private:
  static __device__ __forceinline__ int32_t Block() { return static_cast<int32_t>(blockIdx.x); }
  static __device__ __forceinline__ int32_t Blocks() { return static_cast<int32_t>(gridDim.x); }

  int32_t* counters_;
  int32_t next_;  // Lane 0's: less 2 * Blocks(), where the counter begins.
};

// The copies of one tile of K or V. Lane i < boxes * columns copies box i / kColumns (rows), column
// i % kColumns; boxes without a key that someone sees are left out.
template <typename C>
struct BoxCopy {
  int32_t row = -1;    // Of K in the tensor map; -1: nothing for this lane to do.
  uint32_t bytes = 0;  // Of the whole tile.

  // First row of this lane's box, within the tile.
  static __device__ __forceinline__ int32_t InTile(const Sm90Params& params) {
    return static_cast<int32_t>(threadIdx.x % 32) / C::kColumns << params.box_rows_log2;
  }

  __device__ __forceinline__ void Locate(const Sm90Params& params, const Sm90Item& item,
                                         int32_t tile) {
    const int32_t box_rows = 1 << params.box_rows_log2;
    const int32_t key = tile * C::kKeys + InTile(params);
    const bool active =
        InTile(params) < C::kKeys && key < item.tile.kv_length && key + box_rows > item.key_begin;
    bytes = static_cast<uint32_t>(__popc(__ballot_sync(0xFFFFFFFF, active))) * box_rows * 128;
    row = -1;
    if (!active) return;
    const int32_t shift = params.p.kv.block_tokens_log2;
    const int32_t block = params.p.block_tables[item.tile.table + (key >> shift)];
    row = block * params.block_rows + params.layer_row + item.tile.kv_head * params.head_rows +
          (key & ((1 << shift) - 1));
  }

  __device__ __forceinline__ void Start(const Sm90Params& params, uint8_t* shared, int32_t at,
                                        uint64_t* full) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
    if (lane == 0) ptx::MbarrierArriveExpectBytes(full, bytes);
    __syncwarp();
    if (row >= 0) {
      const int32_t column = lane % C::kColumns;
      ptx::TmaLoad2d(shared + column * C::kKeyColumnBytes + InTile(params) * 128,
                     reinterpret_cast<const CUtensorMap*>(&params.p.kv_map), column * 64, row + at,
                     full, ptx::kL2EvictNormal);
    }
  }
};

template <typename C>
__device__ __forceinline__ void ProduceKeysAndValues(const Sm90Params& params,
                                                     Sm90Shared<C>& shared) {
  Sm90Barriers<C>& barriers = shared.barriers;
  WorkDispenser dispenser(params.p.dispenser);
  uint32_t started = 0;  // Key tiles.
  BoxCopy<C> pending;  // V of the latest one follows the K of the next, as the consumers use them.
  const auto start_values = [&] {
    const uint32_t slot = (started - 1) % C::kValueStages;
    ptx::MbarrierWait(&barriers.value_empty[slot], (started - 1) / C::kValueStages % 2 ^ 1);
    pending.Start(params, shared.value[slot], params.value_rows, &barriers.value_full[slot]);
  };
  // Makes item number `number` known, the next one with something to do; num_tokens 0: there is
  // none.
  const auto publish = [&](uint32_t number) {
    const uint32_t slot = number % C::kItems;
    ptx::MbarrierWait(&barriers.item_empty[slot], number / C::kItems % 2 ^ 1);
    Sm90Item item;
    item.tile.num_tokens = 0;
    while (item.tile.num_tokens == 0) {
      const int32_t index = dispenser.Next();
      if (index >= *params.p.num_work) break;  // And so is every one after it.
      item.tile = LoadTile(params.p, params.p.work[index], C::kRows);
    }
    item.key_begin = item.tile.FirstKey(params.p.window);
    item.first_tile = item.key_begin / C::kKeys;
    item.last_tile = item.tile.last_position() / C::kKeys;
    if (threadIdx.x % 32 == 0) {
      shared.items[slot] = item;
      ptx::MbarrierArrive(&barriers.item_full[slot]);
    }
    __syncwarp();
  };

  publish(0);
  for (uint32_t number = 0;; ++number) {
    const Sm90Item& item = shared.items[number % C::kItems];
    if (item.tile.num_tokens == 0) break;
    for (int32_t tile = item.last_tile; tile >= item.first_tile; --tile) {
      BoxCopy<C> copy;
      copy.Locate(params, item, tile);
      const uint32_t slot = started % C::kKeyStages;
      ptx::MbarrierWait(&barriers.key_empty[slot], started / C::kKeyStages % 2 ^ 1);
      copy.Start(params, shared.key[slot], 0, &barriers.key_full[slot]);
      if (started > 0) start_values();
      ++started;
      pending = copy;
      // The next item becomes known some tiles before this one ends: early enough to bring its
      // queries, late enough not to be one that an idle block should have.
      if (tile == min(item.last_tile, item.first_tile + 3)) publish(number + 1);
    }
  }
  if (started > 0) start_values();
  dispenser.Finish();
}

// Walks the rows of one consumer, `kStep` at a time: row r of a tile is token r / heads, head
// r % heads. Divides once, not once a row.
template <typename C, int kStep>
struct QueryRows {
  const uint16_t* row;
  int64_t step;  // Elements from a row to the one kStep rows on, unless the heads wrap:
  int64_t wrap;  // then so many more.
  int32_t heads;
  int32_t head;
  int32_t head_step;
  int32_t token;
  int32_t token_step;

  __device__ __forceinline__ QueryRows(const PrefillAttentionParams& p, const PrefillTile& tile,
                                       int32_t first)
      : heads(tile.heads), head_step(kStep % tile.heads), token_step(kStep / tile.heads) {
    token = first / heads;
    head = first - token * heads;
    row = static_cast<const uint16_t*>(p.q) + (tile.q_row + token) * p.q_stride +
          int64_t{tile.head + head} * C::kDim;
    step = token_step * p.q_stride + int64_t{head_step} * C::kDim;
    wrap = p.q_stride - int64_t{heads} * C::kDim;
  }
  __device__ __forceinline__ void Advance() {
    token += token_step;
    head += head_step;
    row += step;
    if (head >= heads) {
      head -= heads;
      ++token;
      row += wrap;
    }
  }
};

// Copies the 64 rows of one consumer, in the layout that the copy engine would give: columns of 64
// elements, rows of 128 bytes with their 16-byte pieces permuted by the row.
template <typename C>
__device__ __forceinline__ void ProduceQueries(const Sm90Params& params, Sm90Shared<C>& shared,
                                               int consumer) {
  Sm90Barriers<C>& barriers = shared.barriers;
  const int lane = threadIdx.x % 32;
  constexpr int kPieces = C::kDim / 8;
  constexpr int kStep = 32 / kPieces;  // Rows at a time.
  const int first = lane / kPieces;
  const int piece = lane % kPieces;
  RingPlace<C::kItems> place;
  RingPlace<C::kQueries> query;
  for (;;) {
    ptx::MbarrierWait(&barriers.item_full[place.slot], place.parity);
    const PrefillTile tile = shared.items[place.slot].tile;
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&barriers.item_empty[place.slot]);
    place.Advance();
    if (tile.num_tokens == 0) return;
    if constexpr (C::kQueries == 1) {
      // The slot is busy until the tile before is nearly done: meanwhile they come near.
      QueryRows<C, 32> rows(params.p, tile, consumer * 64 + lane);
      for (int i = 0; i < 2; ++i, rows.Advance()) {
        if (rows.token < tile.num_tokens) ptx::PrefetchL2(rows.row, C::kDim * 2);
      }
    }
    QueryRows<C, kStep> rows(params.p, tile, consumer * 64 + first);
    ptx::MbarrierWait(&barriers.query_empty[query.slot][consumer], query.parity ^ 1);
    const uint32_t to =
        ptx::SharedAddress(shared.query[query.slot][consumer]) + piece / 8 * (64 * 128);
#pragma unroll 8
    for (int i = 0; i < 64; i += kStep) {
      const int row = first + i;
      const bool valid = rows.token < tile.num_tokens;
      ptx::CpAsync16(to + row * 128 + (piece % 8 ^ row % 8) * 16,
                     (valid ? rows.row : static_cast<const uint16_t*>(params.p.q)) + piece * 8,
                     valid ? 16 : 0);
      rows.Advance();
    }
    ptx::CpAsyncCommit();
    ptx::CpAsyncWait<0>();
    ptx::FenceProxyAsyncShared();
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&barriers.query_full[query.slot][consumer]);
    query.Advance();
  }
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_PRODUCER_CUH_
