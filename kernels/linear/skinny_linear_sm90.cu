// y[m, n] = sum_k x[m, k] w[n, k] + bias[n]        x [rows, k], w [n, k], y [rows, n], rows <= 256
// gated: w has 2n rows in groups of 8, gate then up; y = silu(gate) * up
//
// Operands are swapped: weights are the 64-row operand of wgmma, tokens its N = 8 to 256 columns
// (missing ones are zeros). The chunks of all tiles (128 weight rows by 128 columns) form one
// sequence, dealt in equal runs to one block a multiprocessor (skinny_linear_plan.h). In a block
// one thread keeps a ring of chunks full by the copy engine; two warpgroups multiply 64 of a
// chunk's rows each.
//
// A tile that lies within one run is finished by its block. Of a tile that several runs share, the
// block that has its beginning does so at the end of its run, when the others, which have their
// part at the beginning of theirs, are mostly done: it waits for their flags and adds their float32
// parts to its own in the order of k. Runs are numbered against block indices, so that a block
// waits only for blocks that were started before it.
//
// What keeps the memory busy between two products: the next kernel is let in at once, so its blocks
// start the moment that ours end, one by one. They fill their ring with weights, ask the L2 for
// some more, and only then wait for the last of our blocks.
//
// Bytes: 2 n k once from memory, plus x (2 rows k) once a tile and the parts (512 rows a
// block at most) through L2. FLOPs: 2 rows n k, memory-bound up to some 150 rows. Ideal: 2 n k
// / 4.2 TB/s.
//
// Measured on one H200, bf16, cold weights, overlapped launches in a graph, share of the copy
// bandwidth (4.26 TB/s; a pure read reaches 1.06 of it), 1 / 64 rows: 6144x4096 0.82 / 0.70,
// 4096x4096 0.75 / 0.57, gated 14336x4096 1.05 / 0.98, 4096x14336 0.98 / 0.87, 128256x4096 1.06 /
// 0.95; the 129 products of an 8B step in a row 0.98 / 0.87, with a norm before 97 of them 0.94 /
// 0.82. Against the best of cuBLASLt's algorithms: 1.01 to 1.17 up to 32 rows, 0.88 to 1.07 at 64,
// where small products pay for their parts (32 KiB each) and for tokens that all blocks read at
// once.
//
// More rows are for those who want the same bits whatever their number; fixed_linear_sm90.cu takes
// more still. 128 / 256 rows in TFLOP/s: 313 / 411, 244 / 307, 467 / 590 and 367 / 454 for the
// first four shapes, of which the parts (64 and 128 KiB each) take some 12 and 20 us.
//
// What did not help (same kind of machine, beside the kernel as it is in the same run): asking the
// L2 for the next product's weights too (8 MB: 8B step of one row 3.95 to 3.98 ms, 24 MB: 4.14);
// clusters of two that share tokens by multicast (gated 57.7 to 89.2 us at 64 rows; perhaps not all
// 66 clusters are resident at a time); every sharer of a tile finishing a slice of it (gated 58.4
// to 63.3 us, though 1B's small products gain 6 to 10 %); stages given back earlier or of 64
// columns (1 to 15 % slower); half a ring, so that two kernels share a multiprocessor (4.57 to 6.17
// ms). What holds a block longer delays the next kernel's ring, and that costs more than it gains.
//
// Limits: k a multiple of 8, rows of w contiguous. Prior art: stream-K (Osama et al., 2023);
// swapped operands and deep rings as in most Hopper decode kernels.
#include <algorithm>
#include <cstdint>

#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "kernels/linear/skinny_linear_epilogue.cuh"
#include "kernels/linear/skinny_linear_ring.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/memory_order.cuh"
#include "kernels/ptx/register_allocation.cuh"

namespace baton::kernels {
namespace {

constexpr int32_t kSmsMax = 1024;

// Barrier 0 is __syncthreads.
__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Leaves this run's part of a tile to the block that has the tile's beginning.
template <class T>
__device__ __forceinline__ void LeavePart(const SkinnyArgs& args, int32_t run,
                                          const float (&d)[T::kAccumulators]) {
  float4* part = args.parts + int64_t{run} * T::kVectors * kConsumers + threadIdx.x;
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v) {
    __stcg(part + v * kConsumers, make_float4(d[4 * v], d[4 * v + 1], d[4 * v + 2], d[4 * v + 3]));
  }
  ConsumerBarrier();
  if (threadIdx.x == 0) ptx::StoreRelease(&args.flags[run], 1);
}

// Adds the parts of runs run + 1 to last, in that order, and takes their flags down.
template <class T>
__device__ __forceinline__ void AddParts(const SkinnyArgs& args, int32_t run, int32_t last,
                                         float (&d)[T::kAccumulators]) {
  for (int32_t other = run + 1 + static_cast<int32_t>(threadIdx.x); other <= last;
       other += kConsumers) {
    while (ptx::LoadAcquire(&args.flags[other]) == 0) {
    }
    args.flags[other] = 0;
  }
  ConsumerBarrier();
  constexpr int kPartsInFlight = T::kVectors >= 8 ? 2 : 4;
#pragma unroll kPartsInFlight
  for (int32_t other = run + 1; other <= last; ++other) {
    const float4* part = args.parts + int64_t{other} * T::kVectors * kConsumers + threadIdx.x;
#pragma unroll
    for (int v = 0; v < T::kVectors; ++v) {
      const float4 x = __ldcg(part + v * kConsumers);
      d[4 * v] += x.x;
      d[4 * v + 1] += x.y;
      d[4 * v + 2] += x.z;
      d[4 * v + 3] += x.w;
    }
  }
}

template <class T, HalfType kType>
__device__ __forceinline__ void Consume(const SkinnyArgs& args, const Ring& ring, int32_t run,
                                        int64_t chunk, int64_t end) {
  Cursor cursor;
  Position at(chunk, args.chunks_per_tile);
  while (chunk < end) {
    const auto count = static_cast<int32_t>(
        min(static_cast<int64_t>(args.chunks_per_tile - at.in_tile), end - chunk));
    float d[T::kAccumulators];
    MultiplyStages<T, kType>(ring, cursor, count * T::kStagesOfChunk, d);
    if (at.in_tile > 0) {
      LeavePart<T>(args, run, d);
    } else {
      if (count < args.chunks_per_tile) {
        const int64_t last_chunk = chunk + args.chunks_per_tile - 1;
        AddParts<T>(args, run,
                    static_cast<int32_t>(SkinnyRunOwner(args.num_chunks, gridDim.x, last_chunk)),
                    d);
      }
      FinishTile<T::kAccumulators, kType>(args.out, at.tile, 0, d);
    }
    chunk += count;
    at.in_tile = 0;
    ++at.tile;
  }
}

// One block fills a multiprocessor's shared memory; registers are kept to what two could have, so
// that the blocks of small kernels (a norm's, say), which are let in early, start beside ours.
// Tiles of more than 64 tokens need more.
template <class T, HalfType kType>
__global__ void __launch_bounds__(T::kThreads, T::kTokens > 64 ? 1 : 2)
    SkinnyLinearKernel(const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ CUtensorMap x_map, const SkinnyArgs args) {
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t full[kSkinnyStagesMax];
  __shared__ uint64_t empty[kSkinnyStagesMax];
  const uint32_t misaligned = ptx::SharedAddress(shared) % 1024;
  const Ring ring = {.full = full,
                     .empty = empty,
                     .stages = shared + (misaligned == 0 ? 0 : 1024 - misaligned),
                     .num_stages = args.num_stages};
  const auto run = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const auto begin = [&] { return SkinnyRunBegin(args.num_chunks, gridDim.x, run); };
  const auto end = [&] { return SkinnyRunBegin(args.num_chunks, gridDim.x, run + 1); };
  const auto count = [&] { return static_cast<int32_t>(end() - begin()) * T::kStagesOfChunk; };
  if (threadIdx.x == kConsumers) {
    StartRing<T>(args, &w_map, ring, begin() * T::kStagesOfChunk, count());
  }
  __syncthreads();
  ptx::DependencyTrigger();
  if (threadIdx.x >= kConsumers) {
    if constexpr (T::kMovesRegisters) ptx::ReleaseRegisters<40>();
    if (threadIdx.x == kConsumers) {
      KeepRingFull<T>(args, &w_map, &x_map, ring, begin() * T::kStagesOfChunk, count());
    }
    return;
  }
  if constexpr (T::kMovesRegisters) ptx::AcquireRegisters<232>();
  ptx::DependencyWait();
  Consume<T, kType>(args, ring, run, begin(), end());
}

struct Launchable {
  const SkinnyArgs& args;
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;
  const SkinnyLinearPlan& plan;
  CudaStream stream;
  LaunchOrder order;
};

template <class T, HalfType kType>
KernelStatus LaunchTile(const Launchable& launch) {
  return Launch({.grid = dim3(static_cast<unsigned>(launch.plan.num_blocks)),
                 .block = dim3(T::kThreads),
                 .shared_bytes = launch.plan.shared_bytes,
                 .stream = launch.stream,
                 .order = launch.order},
                SkinnyLinearKernel<T, kType>, launch.w_map, launch.x_map, launch.args);
}

template <HalfType kType>
KernelStatus LaunchType(const Launchable& launch) {
  switch (launch.plan.token_tile) {
    case 8:
      return LaunchTile<Tile<8>, kType>(launch);
    case 16:
      return LaunchTile<Tile<16>, kType>(launch);
    case 32:
      return LaunchTile<Tile<32>, kType>(launch);
    case 64:
      return LaunchTile<Tile<64>, kType>(launch);
    case 128:
      return LaunchTile<Tile<128>, kType>(launch);
    default:
      return LaunchTile<Tile<256>, kType>(launch);
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
  return size_t{1} * num_sms * kSkinnyTileRows * SkinnyTokenTile(rows) * sizeof(float);
}

size_t SkinnyLinearCounterBytes(int32_t num_sms) {
  return static_cast<size_t>(std::max(num_sms, kSmsMax)) * sizeof(uint32_t);
}

KernelStatus SkinnyLinearWithConfig(const SkinnyLinearParams& p, const SkinnyLinearConfig& config,
                                    CudaStream stream, LaunchOrder order) {
  const SkinnyLinearShape shape = {.rows = p.rows, .n = p.n, .k = p.k, .gated = p.gated};
  if (!SkinnyLinearSupports(shape)) return KernelStatus::kUnsupported;
  if (p.num_sms <= 0 || p.num_sms > kSmsMax) return KernelStatus::kInvalidArgument;
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
                                          .box_rows = kSkinnyTileRows,
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
  const int64_t stage_weight_bytes =
      int64_t{2} * kSkinnyTileRows * SkinnyStageColumns(plan.token_tile);
  const SkinnyArgs args = {
      .out = {.bias = p.bias,
              .y = p.y,
              .y_stride = p.y_stride,
              .rows = p.rows,
              .n = p.n,
              .y_is_f32 = p.y_is_f32,
              .gated = p.gated},
      .parts = static_cast<float4*>(p.workspace),
      .flags = p.counters,
      .num_chunks = int64_t{plan.num_tiles} * plan.chunks_per_tile,
      .prefetch_stages = p.l2_prefetch_bytes / (stage_weight_bytes * plan.num_blocks),
      .chunks_per_tile = plan.chunks_per_tile,
      .num_stages = plan.num_stages};
  const Launchable launch = {args, w_map, x_map, plan, stream, order};
  return p.type == HalfType::kBF16 ? LaunchType<HalfType::kBF16>(launch)
                                   : LaunchType<HalfType::kF16>(launch);
}

KernelStatus SkinnyLinear(const SkinnyLinearParams& p, CudaStream stream, LaunchOrder order) {
  return SkinnyLinearWithConfig(p, {}, stream, order);
}

}  // namespace baton::kernels
