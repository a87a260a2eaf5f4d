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

// Hands out work in list order: the first tile of a block is its index, the others come from a
// counter. The block that finds the list empty last sets the counters back to zero.
struct WorkDispenser {
  int32_t* counters;

  // Lane 0 only; the others get 0.
  __device__ __forceinline__ int32_t Next() const {
    return threadIdx.x % 32 == 0 ? static_cast<int32_t>(gridDim.x) + atomicAdd(&counters[0], 1) : 0;
  }
  __device__ __forceinline__ void Finish() const {
    if (threadIdx.x % 32 != 0) return;
    __threadfence();
    if (atomicAdd(&counters[1], 1) == static_cast<int32_t>(gridDim.x) - 1) {
      atomicExch(&counters[0], 0);
      atomicExch(&counters[1], 0);
    }
  }
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
  const WorkDispenser dispenser{params.p.dispenser};
  const int32_t num_work = *params.p.num_work;
  RingPlace<C::kStages> key;
  RingPlace<C::kStages> value;
  RingPlace<2> place;
  BoxCopy<C> pending;  // V follows the K of the next tile, as the consumers use them.
  bool has_pending = false;
  const auto start_values = [&] {
    ptx::MbarrierWait(&barriers.value_empty[value.slot], value.parity ^ 1);
    pending.Start(params, shared.value[value.slot], params.value_rows,
                  &barriers.value_full[value.slot]);
    value.Advance();
  };
  const auto publish = [&](const Sm90Item& item) {
    ptx::MbarrierWait(&barriers.item_empty[place.slot], place.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared.items[place.slot] = item;
      ptx::MbarrierArrive(&barriers.item_full[place.slot]);
    }
    __syncwarp();
    place.Advance();
  };

  int32_t index = static_cast<int32_t>(blockIdx.x);
  Sm90Item item;
  while (index < num_work) {
    const int32_t next = dispenser.Next();  // Arrives while this tile is copied.
    item.tile = LoadTile(params.p, params.p.work[index], C::kRows);
    if (item.tile.num_tokens > 0) {
      item.key_begin = item.tile.FirstKey(params.p.window);
      item.first_tile = item.key_begin / C::kKeys;
      item.last_tile = item.tile.last_position() / C::kKeys;
      publish(item);
      for (int32_t tile = item.last_tile; tile >= item.first_tile; --tile) {
        BoxCopy<C> copy;
        copy.Locate(params, item, tile);
        ptx::MbarrierWait(&barriers.key_empty[key.slot], key.parity ^ 1);
        copy.Start(params, shared.key[key.slot], 0, &barriers.key_full[key.slot]);
        key.Advance();
        if (has_pending) start_values();
        pending = copy;
        has_pending = true;
      }
    }
    index = __shfl_sync(0xFFFFFFFF, next, 0);
  }
  if (has_pending) start_values();
  item.tile.num_tokens = 0;
  publish(item);
  dispenser.Finish();
}

// Copies the 64 rows of one consumer, in the layout that the copy engine would give: columns of 64
// elements, rows of 128 bytes with their 16-byte pieces permuted by the row.
template <typename C>
__device__ __forceinline__ void ProduceQueries(const Sm90Params& params, Sm90Shared<C>& shared,
                                               int consumer) {
  Sm90Barriers<C>& barriers = shared.barriers;
  const int lane = threadIdx.x % 32;
  RingPlace<2> place;
  RingPlace<C::kQueries> query;
  for (;;) {
    ptx::MbarrierWait(&barriers.item_full[place.slot], place.parity);
    const PrefillTile tile = shared.items[place.slot].tile;
    __syncwarp();
    if (lane == 0) ptx::MbarrierArrive(&barriers.item_empty[place.slot]);
    place.Advance();
    if (tile.num_tokens == 0) return;
    ptx::MbarrierWait(&barriers.query_empty[query.slot][consumer], query.parity ^ 1);
    const uint32_t to = ptx::SharedAddress(shared.query[query.slot][consumer]);
    constexpr int kPieces = C::kDim / 8;
    for (int i = lane; i < 64 * kPieces; i += 32) {
      const int row = i / kPieces;
      const int piece = i % kPieces;
      const int token = (consumer * 64 + row) / tile.heads;
      const int head = tile.head + consumer * 64 + row - token * tile.heads;
      const bool valid = token < tile.num_tokens;
      const auto* from = static_cast<const uint16_t*>(params.p.q) +
                         (tile.q_row + (valid ? token : 0)) * params.p.q_stride +
                         int64_t{head} * C::kDim + piece * 8;
      ptx::CpAsync16(to + piece / 8 * (64 * 128) + row * 128 + (piece % 8 ^ row % 8) * 16, from,
                     valid ? 16 : 0);
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
