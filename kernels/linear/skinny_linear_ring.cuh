// The streaming half of the skinny product (skinny_linear_sm90.cu): a ring of chunks in shared
// memory that one thread keeps full by the copy engine, and the products of its chunks.
#ifndef BATON_KERNELS_LINEAR_SKINNY_LINEAR_RING_CUH_
#define BATON_KERNELS_LINEAR_SKINNY_LINEAR_RING_CUH_

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/launch/launch.h"
#include "kernels/linear/skinny_linear_epilogue.cuh"
#include "kernels/linear/skinny_linear_plan.h"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_wide.cuh"

namespace baton::kernels {

// A box is what one copy brings: 64 columns, 128 bytes of a row, swizzled.
inline constexpr int kBoxColumns = 64;
inline constexpr int kBoxRowBytes = 128;
inline constexpr int kConsumers = 2 * kSkinnyTileRows;  // Two warpgroups, 64 rows each.

struct SkinnyArgs {
  LinearOutput out;
  float4* parts;    // [num_blocks][token_tile / 8][kConsumers]
  uint32_t* flags;  // [num_blocks], zero: a run's part is there.
  int64_t num_chunks;
  int64_t prefetch_stages;  // Of a block, brought to L2 beyond the ring.
  int32_t chunks_per_tile;
  int32_t num_stages;
};

template <int kTokens_>
struct Tile {
  static constexpr int kTokens = kTokens_;  // 8, 16, 32, 64, 128 or 256: N of wgmma.
  static constexpr int kBoxes = SkinnyStageColumns(kTokens) / kBoxColumns;
  static constexpr int kStagesOfChunk = kSkinnyChunkColumns / SkinnyStageColumns(kTokens);
  static constexpr int kWeightBoxBytes = kSkinnyTileRows * kBoxRowBytes;
  static constexpr int kTokenBoxBytes = kTokens * kBoxRowBytes;
  static constexpr int kWeightBytes = kWeightBoxBytes * kBoxes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBoxBytes * kBoxes;
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kVectors = kAccumulators / 4;
  // The widest tile needs more registers than an even share: a whole warpgroup gives its own away.
  static constexpr bool kMovesRegisters = kTokens > 128;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? 128 : 32);
};

struct Ring {
  uint64_t* full;   // [num_stages]: one arrival and the stage's bytes.
  uint64_t* empty;  // [num_stages]: one arrival a consumer warp.
  unsigned char* stages;
  int num_stages;
};

struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int num_stages) {
    if (++stage == num_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Where a chunk or a stage lies in w: its tile and its place along k. Divides once, then counts.
struct Position {
  int32_t tile;
  int32_t in_tile;
  __device__ __forceinline__ Position(int64_t index, int32_t per_tile)
      : tile(static_cast<int32_t>(index / per_tile)),
        in_tile(static_cast<int32_t>(index - int64_t{tile} * per_tile)) {}
  __device__ __forceinline__ void Advance(int32_t per_tile) {
    if (++in_tile == per_tile) {
      in_tile = 0;
      ++tile;
    }
  }
};

template <class T>
__device__ __forceinline__ void LoadWeights(const CUtensorMap* map, const Ring& ring,
                                            const Position& at, int stage) {
  ptx::MbarrierArriveExpectBytes(&ring.full[stage], T::kStageBytes);
#pragma unroll
  for (int box = 0; box < T::kBoxes; ++box) {
    ptx::TmaLoad2d(ring.stages + stage * T::kStageBytes + box * T::kWeightBoxBytes, map,
                   (at.in_tile * T::kBoxes + box) * kBoxColumns, at.tile * kSkinnyTileRows,
                   &ring.full[stage], ptx::kL2EvictFirst);
  }
}

template <class T>
__device__ __forceinline__ void LoadTokens(const CUtensorMap* map, const Ring& ring,
                                           const Position& at, int stage) {
  unsigned char* to = ring.stages + stage * T::kStageBytes + T::kWeightBytes;
#pragma unroll
  for (int box = 0; box < T::kBoxes; ++box) {
    ptx::TmaLoad2d(to + box * T::kTokenBoxBytes, map, (at.in_tile * T::kBoxes + box) * kBoxColumns,
                   0, &ring.full[stage], ptx::kL2EvictLast);
  }
}

// One thread, first of all: makes the barriers and asks for the weights of the first stages.
// `begin` and `count` are stages, of all tiles and of the block.
template <class T>
__device__ __forceinline__ void StartRing(const SkinnyArgs& args, const CUtensorMap* w_map,
                                          const Ring& ring, int64_t begin, int32_t count) {
  for (int i = 0; i < ring.num_stages; ++i) {
    ptx::MbarrierInit(&ring.full[i], 1);
    ptx::MbarrierInit(&ring.empty[i], kConsumers / 32);
  }
  ptx::MbarrierInitFence();
  const int32_t per_tile = args.chunks_per_tile * T::kStagesOfChunk;
  Position at(begin, per_tile);
  for (int32_t i = 0; i < min(count, ring.num_stages); ++i, at.Advance(per_tile)) {
    LoadWeights<T>(w_map, ring, at, i);
  }
}

// The same thread: everything else, in order. Tokens are the first thing that another kernel wrote.
template <class T>
__device__ __forceinline__ void KeepRingFull(const SkinnyArgs& args, const CUtensorMap* w_map,
                                             const CUtensorMap* x_map, const Ring& ring,
                                             int64_t begin, int32_t count) {
  const int32_t per_tile = args.chunks_per_tile * T::kStagesOfChunk;
  const int32_t first = min(count, ring.num_stages);
  Position at(begin + first, per_tile);
  Position ahead = at;
  const auto prefetched = static_cast<int32_t>(min(args.prefetch_stages, int64_t{count - first}));
  for (int32_t i = 0; i < prefetched; ++i, ahead.Advance(per_tile)) {
#pragma unroll
    for (int box = 0; box < T::kBoxes; ++box) {
      ptx::TmaPrefetch2d(w_map, (ahead.in_tile * T::kBoxes + box) * kBoxColumns,
                         ahead.tile * kSkinnyTileRows);
    }
  }
  ptx::DependencyWait();
  Position tokens_at(begin, per_tile);
  for (int32_t i = 0; i < first; ++i, tokens_at.Advance(per_tile)) {
    LoadTokens<T>(x_map, ring, tokens_at, i);
  }
  Cursor cursor;
  for (int32_t i = first; i < count; ++i, at.Advance(per_tile)) {
    ptx::MbarrierWait(&ring.empty[cursor.stage], cursor.parity);
    LoadWeights<T>(w_map, ring, at, cursor.stage);
    LoadTokens<T>(x_map, ring, at, cursor.stage);
    cursor.Advance(ring.num_stages);
  }
}

// Multiplies the next `count` stages of the ring into `d`. One stage's products run while the next
// one's are issued; a stage is given back when its products have ended.
template <class T, HalfType kType>
__device__ __forceinline__ void MultiplyStages(const Ring& ring, Cursor& cursor, int count,
                                               float (&d)[T::kAccumulators]) {
  using Product = std::conditional_t<(T::kTokens > 64), ptx::WgmmaWide<kType, T::kTokens>,
                                     ptx::Wgmma<kType, T::kTokens>>;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  int running = 0;
  for (int i = 0; i < count; ++i) {
    ptx::MbarrierWait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.stages + cursor.stage * T::kStageBytes;
    ptx::WgmmaFence();
#pragma unroll
    for (int box = 0; box < T::kBoxes; ++box) {
      const uint64_t a = ptx::WgmmaDescriptorSwizzle128(stage + box * T::kWeightBoxBytes +
                                                        warpgroup * 64 * kBoxRowBytes);
      const uint64_t b =
          ptx::WgmmaDescriptorSwizzle128(stage + T::kWeightBytes + box * T::kTokenBoxBytes);
#pragma unroll
      for (int step = 0; step < kBoxColumns / 16; ++step) {
        Product::Run(d, a + step * ptx::kWgmmaDescriptorStepK16,
                     b + step * ptx::kWgmmaDescriptorStepK16, i > 0 || box > 0 || step > 0);
      }
    }
    ptx::WgmmaCommit();
    if (i > 0) {
      ptx::WgmmaWait<1>();
      if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(&ring.empty[running]);
    }
    running = cursor.stage;
    cursor.Advance(ring.num_stages);
  }
  ptx::WgmmaWait<0>();
  if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(&ring.empty[running]);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SKINNY_LINEAR_RING_CUH_
