// y[m, n] = sum_k x[m, k] w[n, k] + bias[n]          x [rows, k], w [n, k], y [rows, n], rows <= 64
// gated: w has 2n rows in groups of 8, gate then up; y = silu(gate) * up
//
// Operands are swapped: weights are the 64-row operand of wgmma, tokens its N = 8, 16, 32 or 64
// columns (missing ones are zeros). The chunks of all tiles (64 * warpgroups weight rows by 64 or
// 128 columns) form one sequence, dealt in equal runs to one block a multiprocessor
// (skinny_linear_plan.h). In a block one thread keeps a ring of chunks full by the copy engine;
// each warpgroup multiplies 64 of a chunk's rows. A tile that lies within one run is finished by
// its block; otherwise every block writes its part in float32 and the last to arrive adds the parts
// in the order of k. The ring is filled with weights before the kernel waits for the one before it.
//
// Bytes: 2 n k once from memory, plus x (2 rows k) once a tile and the parts (8 rows * tile_rows a
// block at most) through L2. FLOPs: 2 rows n k, memory-bound throughout. Ideal: 2 n k / 4.2 TB/s.
//
// Limits: k a multiple of 8, rows of w contiguous. Prior art: stream-K (Osama et al., 2023);
// swapped operands and deep rings as in most Hopper decode kernels.
#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace baton::kernels {
namespace {

constexpr int kBoxColumns = 64;
constexpr int kBoxRowBytes = 128;
constexpr int kStagesMax = 16;

struct SkinnyArgs {
  const void* bias;    // [w_rows] or null
  void* y;             // [rows, n]
  float* workspace;    // [2 * num_blocks][token_tile / 8][threads] float4
  uint32_t* counters;  // [num_tiles], zero
  int64_t y_stride;
  int64_t num_chunks;
  int64_t prefetch_chunks;  // Of a block, brought to L2 beyond the ring.
  int32_t rows;
  int32_t n;
  int32_t chunks_per_tile;
  int32_t num_stages;
  bool y_is_f32;
  bool gated;
};

template <int kWarpgroups, int kTokens, int kBoxes>
struct Tile {
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kWeightBoxBytes = kRows * kBoxRowBytes;
  static constexpr int kTokenBoxBytes = kTokens * kBoxRowBytes;
  static constexpr int kWeightBytes = kWeightBoxBytes * kBoxes;
  static constexpr int kStageBytes = kWeightBytes + kTokenBoxBytes * kBoxes;
  static constexpr int kAccumulators = kTokens / 2;
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

// One thread. Weights of the first stages are requested before the wait, everything else after it.
template <class T, int kBoxes>
__device__ __forceinline__ void Produce(const SkinnyArgs& args, const CUtensorMap* w_map,
                                        const CUtensorMap* x_map, const Ring& ring, int64_t begin,
                                        int64_t end) {
  const auto load_w = [&](int64_t chunk, int stage) {
    const auto tile = static_cast<int32_t>(chunk / args.chunks_per_tile);
    const auto column = static_cast<int32_t>(chunk % args.chunks_per_tile) * kBoxColumns * kBoxes;
    unsigned char* to = ring.stages + stage * T::kStageBytes;
    ptx::MbarrierArriveExpectBytes(&ring.full[stage], T::kStageBytes);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      ptx::TmaLoad2d(to + box * T::kWeightBoxBytes, w_map, column + box * kBoxColumns,
                     tile * T::kRows, &ring.full[stage], ptx::kL2EvictFirst);
    }
  };
  const auto load_x = [&](int64_t chunk, int stage) {
    const auto column = static_cast<int32_t>(chunk % args.chunks_per_tile) * kBoxColumns * kBoxes;
    unsigned char* to = ring.stages + stage * T::kStageBytes + T::kWeightBytes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      ptx::TmaLoad2d(to + box * T::kTokenBoxBytes, x_map, column + box * kBoxColumns, 0,
                     &ring.full[stage], ptx::kL2EvictLast);
    }
  };
  const auto first = static_cast<int>(min(end - begin, static_cast<int64_t>(ring.num_stages)));
  for (int i = 0; i < first; ++i) load_w(begin + i, i);
  const int64_t prefetch_end = min(end, begin + first + args.prefetch_chunks);
  for (int64_t chunk = begin + first; chunk < prefetch_end; ++chunk) {
    const auto tile = static_cast<int32_t>(chunk / args.chunks_per_tile);
    const auto column = static_cast<int32_t>(chunk % args.chunks_per_tile) * kBoxColumns * kBoxes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      ptx::TmaPrefetch2d(w_map, column + box * kBoxColumns, tile * T::kRows);
    }
  }
  ptx::DependencyWait();
  for (int i = 0; i < first; ++i) load_x(begin + i, i);
  Cursor cursor;
  for (int64_t chunk = begin + first; chunk < end; ++chunk) {
    ptx::MbarrierWait(&ring.empty[cursor.stage], cursor.parity);
    load_w(chunk, cursor.stage);
    load_x(chunk, cursor.stage);
    cursor.Advance(ring.num_stages);
  }
}

// Multiplies the next `count` chunks of the ring into `d`.
template <class T, HalfType kType, int kTokens, int kBoxes>
__device__ __forceinline__ void MultiplyChunks(const Ring& ring, Cursor& cursor, int count,
                                               int warpgroup, float (&d)[T::kAccumulators]) {
  for (int i = 0; i < count; ++i) {
    ptx::MbarrierWait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.stages + cursor.stage * T::kStageBytes;
    ptx::WgmmaFence();
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const uint64_t a = ptx::WgmmaDescriptorSwizzle128(stage + box * T::kWeightBoxBytes +
                                                        warpgroup * 64 * kBoxRowBytes);
      const uint64_t b =
          ptx::WgmmaDescriptorSwizzle128(stage + T::kWeightBytes + box * T::kTokenBoxBytes);
#pragma unroll
      for (int step = 0; step < kBoxColumns / 16; ++step) {
        ptx::Wgmma<kType, kTokens>::Run(d, a + step * ptx::kWgmmaDescriptorStepK16,
                                        b + step * ptx::kWgmmaDescriptorStepK16,
                                        i > 0 || box > 0 || step > 0);
      }
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    if (threadIdx.x % 32 == 0) ptx::MbarrierArrive(&ring.empty[cursor.stage]);
    cursor.Advance(ring.num_stages);
  }
}

template <int kThreads>
__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// Index of a block's part of a tile: its run's first tile, or else its last.
__device__ __forceinline__ int64_t PartSlot(const SkinnyArgs& args, int64_t block, int64_t tile) {
  const int64_t first = SkinnyRunBegin(args.num_chunks, gridDim.x, block) / args.chunks_per_tile;
  return 2 * block + (first == tile ? 0 : 1);
}

// Writes this block's part of `tile`; true in the block that came last, which then holds the sum.
template <class T>
__device__ __forceinline__ bool ShareTile(const SkinnyArgs& args, int64_t tile,
                                          uint32_t* last_in_block, float (&d)[T::kAccumulators]) {
  constexpr int kVectors = T::kAccumulators / 4;
  float4* parts = reinterpret_cast<float4*>(args.workspace);
  float4* mine = parts + PartSlot(args, blockIdx.x, tile) * kVectors * T::kConsumers + threadIdx.x;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    __stcg(mine + v * T::kConsumers,
           make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
  }
  const int64_t first_chunk = tile * args.chunks_per_tile;
  const auto first = static_cast<int32_t>(SkinnyRunOwner(args.num_chunks, gridDim.x, first_chunk));
  const auto last = static_cast<int32_t>(
      SkinnyRunOwner(args.num_chunks, gridDim.x, first_chunk + args.chunks_per_tile - 1));
  __threadfence();
  ConsumerBarrier<T::kConsumers>();
  if (threadIdx.x == 0) {
    const uint32_t before = atomicAdd(&args.counters[tile], 1);
    const bool is_last = before == static_cast<uint32_t>(last - first);
    if (is_last) args.counters[tile] = 0;
    __threadfence();
    *last_in_block = is_last ? 1 : 0;
  }
  ConsumerBarrier<T::kConsumers>();
  if (*reinterpret_cast<volatile uint32_t*>(last_in_block) == 0) return false;
#pragma unroll
  for (int i = 0; i < T::kAccumulators; ++i) d[i] = 0;
#pragma unroll 4
  for (int32_t block = first; block <= last; ++block) {
    const float4* part =
        parts + PartSlot(args, block, tile) * kVectors * T::kConsumers + threadIdx.x;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const float4 x = __ldcg(part + v * T::kConsumers);
      d[4 * v] += x.x;
      d[4 * v + 1] += x.y;
      d[4 * v + 2] += x.z;
      d[4 * v + 3] += x.w;
    }
  }
  return true;
}

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + __expf(-x)); }

template <HalfType kType>
__device__ __forceinline__ void Store(const SkinnyArgs& args, int row, int64_t n, float value) {
  const int64_t at = row * args.y_stride + n;
  if (args.y_is_f32) {
    static_cast<float*>(args.y)[at] = value;
  } else {
    static_cast<typename HalfTraits<kType>::Element*>(args.y)[at] =
        HalfTraits<kType>::FromFloat(value);
  }
}

// Bias, gate, and the store of one tile. A thread's two weight rows are 8 apart: gate and up.
template <class T, HalfType kType>
__device__ __forceinline__ void Finish(const SkinnyArgs& args, int64_t tile,
                                       const float (&d)[T::kAccumulators]) {
  using Element = typename HalfTraits<kType>::Element;
  const int lane = threadIdx.x % 32;
  const int64_t low = tile * T::kRows + threadIdx.x / 32 * 16 + lane / 4;  // Row of w.
  const int64_t high = low + 8;
  const int64_t w_rows = args.gated ? int64_t{2} * args.n : args.n;
  float bias_low = 0;
  float bias_high = 0;
  if (args.bias != nullptr) {
    const auto* bias = static_cast<const Element*>(args.bias);
    if (low < w_rows) bias_low = HalfTraits<kType>::ToFloat(bias[low]);
    if (high < w_rows) bias_high = HalfTraits<kType>::ToFloat(bias[high]);
  }
#pragma unroll
  for (int i = 0; i < T::kAccumulators / 2; ++i) {
    const int at = i / 2 * 4 + i % 2;  // Accumulator of the low row; the high row's is two on.
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (row >= args.rows) continue;
    const float value_low = d[at] + bias_low;
    const float value_high = d[at + 2] + bias_high;
    if (args.gated) {
      const int64_t n = low / 16 * 8 + lane / 4;
      if (n < args.n) Store<kType>(args, row, n, Silu(value_low) * value_high);
    } else {
      if (low < args.n) Store<kType>(args, row, low, value_low);
      if (high < args.n) Store<kType>(args, row, high, value_high);
    }
  }
}

template <HalfType kType, int kWarpgroups, int kTokens, int kBoxes>
__global__ void __launch_bounds__(128 * kWarpgroups + 32, 1)
    SkinnyLinearKernel(const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ CUtensorMap x_map, const SkinnyArgs args) {
  using T = Tile<kWarpgroups, kTokens, kBoxes>;
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t full[kStagesMax];
  __shared__ uint64_t empty[kStagesMax];
  __shared__ uint32_t last_in_block;
  const uint32_t misaligned = ptx::SharedAddress(shared) % 1024;
  const Ring ring = {.full = full,
                     .empty = empty,
                     .stages = shared + (misaligned == 0 ? 0 : 1024 - misaligned),
                     .num_stages = args.num_stages};
  if (threadIdx.x == 0) {
    ptx::TmaPrefetchDescriptor(&w_map);
    ptx::TmaPrefetchDescriptor(&x_map);
    for (int i = 0; i < args.num_stages; ++i) {
      ptx::MbarrierInit(&full[i], 1);
      ptx::MbarrierInit(&empty[i], 4 * kWarpgroups);
    }
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  ptx::DependencyTrigger();
  int64_t chunk = SkinnyRunBegin(args.num_chunks, gridDim.x, blockIdx.x);
  const int64_t end = SkinnyRunBegin(args.num_chunks, gridDim.x, blockIdx.x + 1);
  if (threadIdx.x >= T::kConsumers) {
    if (threadIdx.x == T::kConsumers) {
      Produce<T, kBoxes>(args, &w_map, &x_map, ring, chunk, end);
    }
    return;
  }
  ptx::DependencyWait();
  Cursor cursor;
  while (chunk < end) {
    const int64_t tile = chunk / args.chunks_per_tile;
    const int64_t tile_begin = tile * args.chunks_per_tile;
    const int64_t tile_end = min(tile_begin + args.chunks_per_tile, end);
    float d[T::kAccumulators];
    MultiplyChunks<T, kType, kTokens, kBoxes>(ring, cursor, static_cast<int>(tile_end - chunk),
                                              static_cast<int>(threadIdx.x / 128), d);
    const bool whole = chunk == tile_begin && tile_end == tile_begin + args.chunks_per_tile;
    if (whole || ShareTile<T>(args, tile, &last_in_block, d)) Finish<T, kType>(args, tile, d);
    chunk = tile_end;
  }
}

struct Launchable {
  const SkinnyArgs& args;
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;
  const SkinnyLinearPlan& plan;
  CudaStream stream;
  LaunchOrder order;
};

template <HalfType kType, int kWarpgroups, int kTokens, int kBoxes>
KernelStatus LaunchTile(const Launchable& launch) {
  using T = Tile<kWarpgroups, kTokens, kBoxes>;
  return Launch({.grid = dim3(static_cast<unsigned>(launch.plan.num_blocks)),
                 .block = dim3(T::kThreads),
                 .shared_bytes = launch.plan.shared_bytes,
                 .stream = launch.stream,
                 .order = launch.order},
                SkinnyLinearKernel<kType, kWarpgroups, kTokens, kBoxes>, launch.w_map, launch.x_map,
                launch.args);
}

template <HalfType kType, int kWarpgroups, int kBoxes>
KernelStatus LaunchTokens(const Launchable& launch) {
  switch (launch.plan.token_tile) {
    case 8:
      return LaunchTile<kType, kWarpgroups, 8, kBoxes>(launch);
    case 16:
      return LaunchTile<kType, kWarpgroups, 16, kBoxes>(launch);
    case 32:
      return LaunchTile<kType, kWarpgroups, 32, kBoxes>(launch);
    default:
      return LaunchTile<kType, kWarpgroups, 64, kBoxes>(launch);
  }
}

template <HalfType kType>
KernelStatus LaunchType(const Launchable& launch) {
  const SkinnyLinearConfig& config = launch.plan.config;
  switch (config.warpgroups * 16 + config.chunk_boxes) {
    case 0x11:
      return LaunchTokens<kType, 1, 1>(launch);
    case 0x12:
      return LaunchTokens<kType, 1, 2>(launch);
    case 0x21:
      return LaunchTokens<kType, 2, 1>(launch);
    case 0x22:
      return LaunchTokens<kType, 2, 2>(launch);
    case 0x41:
      return LaunchTokens<kType, 4, 1>(launch);
    default:
      return KernelStatus::kUnsupported;
  }
}

bool Aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

KernelStatus Check(const SkinnyLinearParams& p, const SkinnyLinearPlan& plan) {
  if (!Aligned(p.x, 16) || !Aligned(p.w, 16) || p.x_stride % 8 != 0 || p.x_stride < p.k) {
    return KernelStatus::kInvalidArgument;
  }
  if (!Aligned(p.y, p.y_is_f32 ? 4 : 2) || p.y_stride < p.n) return KernelStatus::kInvalidArgument;
  if (!Aligned(p.workspace, 16) || !Aligned(p.counters, 4) ||
      p.workspace_bytes < plan.workspace_bytes) {
    return KernelStatus::kInvalidArgument;
  }
  return KernelStatus::kOk;
}

}  // namespace

size_t SkinnyLinearWorkspaceBytes(int32_t rows, int32_t num_sms) {
  const int32_t token_tile = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  return size_t{2} * num_sms * kSkinnyTileRowsMax * token_tile * sizeof(float);
}

size_t SkinnyLinearCounterBytes(int64_t weight_rows) {
  return static_cast<size_t>((weight_rows + kSkinnyTileRowsMin - 1) / kSkinnyTileRowsMin) *
         sizeof(uint32_t);
}

KernelStatus SkinnyLinearWithConfig(const SkinnyLinearParams& p, const SkinnyLinearConfig& config,
                                    CudaStream stream, LaunchOrder order) {
  const SkinnyLinearShape shape = {.rows = p.rows, .n = p.n, .k = p.k, .gated = p.gated};
  if (!SkinnyLinearSupports(shape)) return KernelStatus::kUnsupported;
  if (p.num_sms <= 0) return KernelStatus::kInvalidArgument;
  const SkinnyLinearPlan plan = PlanSkinnyLinear(shape, config, p.num_sms);
  const KernelStatus checked = Check(p, plan);
  if (checked != KernelStatus::kOk) return checked;
  const int64_t w_rows = int64_t{p.n} * (p.gated ? 2 : 1);
  CUtensorMap w_map;
  CUtensorMap x_map;
  KernelStatus encoded = EncodeTensorMap({.base = p.w,
                                          .type = p.type,
                                          .rows = w_rows,
                                          .cols = p.k,
                                          .row_stride = p.k,
                                          .box_rows = plan.tile_rows,
                                          .box_cols = kBoxColumns,
                                          .l2_promotion_bytes = config.l2_promotion_bytes},
                                         &w_map);
  if (encoded != KernelStatus::kOk) return encoded;
  encoded = EncodeTensorMap({.base = p.x,
                             .type = p.type,
                             .rows = p.rows,
                             .cols = p.k,
                             .row_stride = p.x_stride,
                             .box_rows = plan.token_tile,
                             .box_cols = kBoxColumns},
                            &x_map);
  if (encoded != KernelStatus::kOk) return encoded;
  const int64_t chunk_bytes = int64_t{plan.tile_rows} * kBoxRowBytes * config.chunk_boxes;
  const SkinnyArgs args = {.bias = p.bias,
                           .y = p.y,
                           .workspace = static_cast<float*>(p.workspace),
                           .counters = p.counters,
                           .y_stride = p.y_stride,
                           .num_chunks = int64_t{plan.num_tiles} * plan.chunks_per_tile,
                           .prefetch_chunks = p.l2_prefetch_bytes / (chunk_bytes * plan.num_blocks),
                           .rows = p.rows,
                           .n = p.n,
                           .chunks_per_tile = plan.chunks_per_tile,
                           .num_stages = plan.num_stages,
                           .y_is_f32 = p.y_is_f32,
                           .gated = p.gated};
  const Launchable launch = {args, w_map, x_map, plan, stream, order};
  return p.type == HalfType::kBF16 ? LaunchType<HalfType::kBF16>(launch)
                                   : LaunchType<HalfType::kF16>(launch);
}

KernelStatus SkinnyLinear(const SkinnyLinearParams& p, CudaStream stream, LaunchOrder order) {
  return SkinnyLinearWithConfig(p, {}, stream, order);
}

}  // namespace baton::kernels
