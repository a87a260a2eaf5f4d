// y[m, n] = silu(sum_k x[m, k] w_gate[n, k]) * sum_k x[m, k] w_up[n, k]
//     x [rows, k], w [2n, k] (gate and up interleaved by 8 rows), y [rows, n]
//
// A persistent grid of clusters takes tiles of 128 token rows by 256 or 224 weight rows in turn
// (gated_linear_plan.h). In a block one thread keeps a ring of chunks of 64 columns full by the
// copy engine; two warpgroups multiply 64 token rows each with all of the weight rows. Two blocks
// of a cluster have tiles of consecutive rows: each fetches half of their common weights and sends
// it to both. In D of wgmma a thread's gate and up lie side by side (groups of 8 columns), so the
// activation needs no exchange; results go to shared memory and from there by the copy engine,
// while the next tile is being multiplied.
//
// FLOPs: 4 rows n k. Bytes: 4 n k of weights (for each group of row units), 2 rows (k + n). From
// some 200 rows on bound by the tensor cores, in a long run by power.
//
// Measured on one H200, bf16, n 14336, k 4096, weights cold, back to back until the clock had
// fallen to the power limit, against the best of cuBLASLt's proposals and a pass for the activation
// in the same run (before turns went back and forth): 128 rows 68.6 us against 79.1, 256 105.7 /
// 117.3, 384 150 / 161, 512 196 / 205, 1024 375 / 402, 2048 745 / 773, 4096 1475 / 1499. In a
// graph, cooler: 474, 456, 667, 721, 703 and 655 TFLOP/s for 128, 192, 256, 512, 1024 and 4096
// rows. In an 8B decode step of 256 sequences it takes as long as the pair; what it gains there are
// the gaps of 32 launches (step 1.3 % shorter). A prefill step of 4096 tokens, bound by power,
// stays as it was.
//
// Limits: no bias; not split along k, so few tiles leave multiprocessors idle. The end of a tile is
// not overlapped with products of the next. Prior art: fast.cu; CUTLASS's cooperative kernels.
#include <algorithm>
#include <cstdint>

#include "kernels/gated_linear/gated_linear_cuda.h"
#include "kernels/launch/grouped_units.h"
#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/proxy_fence.cuh"
#include "kernels/ptx/register_allocation.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma_wide.cuh"

namespace baton::kernels {
namespace {

constexpr int kChunk = 64;  // Columns of k: 128 bytes of a row, swizzled.
constexpr int kChunkRowBytes = 128;
constexpr int kStages = 4;
constexpr int kBarrierBytes = 2 * kStages * 8;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kThreads = kConsumers + kWarpgroup;
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;

template <int kColumns_, int kCluster_>
struct Tile {
  static constexpr int kColumns = kColumns_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kOutputs = kColumns / 2;
  static constexpr int kTokenBytes = kGatedTileRows * kChunkRowBytes;
  static constexpr int kWeightBoxRows = kColumns / kCluster;
  static constexpr int kWeightBoxBytes = kWeightBoxRows * kChunkRowBytes;
  static constexpr int kStageBytes = kTokenBytes + kColumns * kChunkRowBytes;
  // Rows of results, padded so that eight of them hit all banks.
  static constexpr int kResultRowBytes = kOutputs * 2 + 16;
  static constexpr int kResultBytes = 64 * kResultRowBytes;  // Of a warpgroup.
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kResultBytes + kBarrierBytes;
  static_assert(kWeightBoxBytes % 1024 == 0);
};

struct Args {
  uint16_t* y;
  int64_t y_stride;
  int32_t rows;
  int32_t n;
  int32_t chunks;
  int32_t num_units;
  int32_t turns;  // Of the cluster that has most.
  int32_t num_row_units;
  int32_t num_column_tiles;
  int32_t group_rows;
};

struct Ring {
  uint64_t* full;   // [kStages]: one arrival and the stage's bytes.
  uint64_t* empty;  // [kStages]: one arrival a consumer warp of the cluster.
  unsigned char* stages;
};

struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The unit that a cluster makes in its n-th turn; num_units or more: none. Every other turn goes
// backwards, so that the last tiles of rows, where they are not full, fall to all clusters alike.
template <class T>
__device__ __forceinline__ int32_t UnitOfTurn(int32_t turn) {
  const int32_t clusters = static_cast<int32_t>(gridDim.x) / T::kCluster;
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / T::kCluster;
  return turn * clusters + (turn % 2 == 0 ? cluster : clusters - 1 - cluster);
}

template <class T>
__device__ __forceinline__ void LoadWeights(const CUtensorMap* map, const Ring& ring, int stage,
                                            int32_t chunk, int32_t column_tile, uint32_t rank) {
  unsigned char* to = ring.stages + stage * T::kStageBytes + T::kTokenBytes;
  const int32_t row = column_tile * T::kColumns;
  if constexpr (T::kCluster == 1) {
    ptx::TmaLoad2d(to, map, chunk * kChunk, row, &ring.full[stage], ptx::kL2EvictNormal);
  } else {
    ptx::TmaLoad2dMulticast(to + rank * T::kWeightBoxBytes, map, chunk * kChunk,
                            row + static_cast<int32_t>(rank) * T::kWeightBoxRows, &ring.full[stage],
                            (1 << T::kCluster) - 1, ptx::kL2EvictNormal);
  }
}

template <class T>
__device__ __forceinline__ void LoadTokens(const CUtensorMap* map, const Ring& ring, int stage,
                                           int32_t chunk, int32_t row) {
  ptx::TmaLoad2d(ring.stages + stage * T::kStageBytes, map, chunk * kChunk, row, &ring.full[stage],
                 ptx::kL2EvictNormal);
}

// One thread. The weights of the first stages are asked for before the kernel before has ended.
template <class T>
__device__ __forceinline__ void KeepRingFull(const Args& args, const CUtensorMap* x_map,
                                             const CUtensorMap* w_map, const Ring& ring) {
  const uint32_t rank = T::kCluster == 1 ? 0 : ptx::ClusterRank();
  const int32_t ahead = min(kStages, args.chunks);
  const GroupedUnit first =
      GroupedUnitAt(UnitOfTurn<T>(0), args.num_row_units, args.num_column_tiles, args.group_rows);
  for (int32_t i = 0; i < ahead; ++i) {
    ptx::MbarrierArriveExpectBytes(&ring.full[i], T::kStageBytes);
    LoadWeights<T>(w_map, ring, i, i, first.column, rank);
  }
  ptx::DependencyWait();
  Cursor cursor;
  cursor.parity = 1;  // The ring is empty at first.
  for (int32_t turn = 0; turn < args.turns; ++turn) {
    const int32_t index = UnitOfTurn<T>(turn);
    if (index >= args.num_units) break;
    const GroupedUnit unit =
        GroupedUnitAt(index, args.num_row_units, args.num_column_tiles, args.group_rows);
    const int32_t row = (unit.row * T::kCluster + static_cast<int32_t>(rank)) * kGatedTileRows;
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      if (turn > 0 || chunk >= ahead) {
        ptx::MbarrierWait(&ring.empty[cursor.stage], cursor.parity);
        ptx::MbarrierArriveExpectBytes(&ring.full[cursor.stage], T::kStageBytes);
        LoadWeights<T>(w_map, ring, cursor.stage, chunk, unit.column, rank);
      }
      LoadTokens<T>(x_map, ring, cursor.stage, chunk, row);
      cursor.Advance();
    }
  }
}

// Says to every block of the cluster that this warp needs the stage no more.
template <class T>
__device__ __forceinline__ void Release(const Ring& ring, uint32_t empty, int stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (T::kCluster == 1) {
    if (lane == 0) ptx::MbarrierArrive(&ring.empty[stage]);
  } else {
    if (lane < T::kCluster) ptx::MbarrierArriveCluster(empty + stage * sizeof(uint64_t));
  }
}

// A warpgroup that has no rows in a tile.
template <class T>
__device__ __forceinline__ void Skip(const Ring& ring, uint32_t empty, Cursor& cursor,
                                     int32_t chunks) {
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    ptx::MbarrierWait(&ring.full[cursor.stage], cursor.parity);
    Release<T>(ring, empty, cursor.stage);
    cursor.Advance();
  }
}

template <class T, HalfType kType>
__device__ __forceinline__ void Multiply(const Ring& ring, uint32_t empty, Cursor& cursor,
                                         int32_t chunks, float (&d)[T::kColumns / 2]) {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  int running = 0;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    ptx::MbarrierWait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.stages + cursor.stage * T::kStageBytes;
    const uint64_t a = ptx::WgmmaDescriptorSwizzle128(stage + warpgroup * 64 * kChunkRowBytes);
    const uint64_t b = ptx::WgmmaDescriptorSwizzle128(stage + T::kTokenBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
      ptx::WgmmaWide<kType, T::kColumns>::Run(d, a + step * ptx::kWgmmaDescriptorStepK16,
                                              b + step * ptx::kWgmmaDescriptorStepK16,
                                              chunk > 0 || step > 0);
    }
    ptx::WgmmaCommit();
    if (chunk > 0) {
      ptx::WgmmaWait<1>();
      Release<T>(ring, empty, running);
    }
    running = cursor.stage;
    cursor.Advance();
  }
  ptx::WgmmaWait<0>();
  Release<T>(ring, empty, running);
}

__device__ __forceinline__ float Gated(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// Activation and store of 64 rows by a warpgroup. Its first 64 threads send a row each.
template <class T, HalfType kType>
__device__ __forceinline__ void Finish(const Args& args, unsigned char* results, int32_t row,
                                       int32_t column, const float (&d)[T::kColumns / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int lane = thread % 32;
  if (thread < 64) ptx::BulkWaitRead();  // What was sent before.
  ptx::NamedBarrierSync(1 + warpgroup, kWarpgroup);
  unsigned char* to =
      results + (thread / 32 * 16 + lane % 16) * T::kResultRowBytes + lane / 16 * 16;
#pragma unroll
  for (int i = 0; i < T::kOutputs / 8; i += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // Columns i, i, i + 1, i + 1; low rows, high rows.
      const int at = (i + j / 2) * 8 + j % 2 * 2;
      packed[j] = PackPair<kType>(Gated(d[at], d[at + 4]), Gated(d[at + 1], d[at + 5]));
    }
    ptx::StoreMatrix4(to + i * 16, packed[0], packed[1], packed[2], packed[3]);
  }
  ptx::FenceProxyAsyncShared();
  ptx::NamedBarrierSync(1 + warpgroup, kWarpgroup);
  const int32_t outputs = min(T::kOutputs, args.n - column);
  if (thread < 64 && row + thread < args.rows && outputs > 0) {
    ptx::BulkStore(args.y + (row + thread) * args.y_stride + column,
                   results + thread * T::kResultRowBytes, static_cast<uint32_t>(outputs) * 2);
  }
  if (thread < 64) ptx::BulkCommit();
}

template <class T, HalfType kType>
__device__ __forceinline__ void Consume(const Args& args, const Ring& ring,
                                        unsigned char* results) {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const uint32_t rank = T::kCluster == 1 ? 0 : ptx::ClusterRank();
  const uint32_t empty =
      T::kCluster == 1 ? 0 : ptx::AddressInBlock(ring.empty, threadIdx.x % T::kCluster);
  Cursor cursor;
  for (int32_t turn = 0; turn < args.turns; ++turn) {
    const int32_t index = UnitOfTurn<T>(turn);
    if (index >= args.num_units) break;
    const GroupedUnit unit =
        GroupedUnitAt(index, args.num_row_units, args.num_column_tiles, args.group_rows);
    const int32_t row =
        (unit.row * T::kCluster + static_cast<int32_t>(rank)) * kGatedTileRows + warpgroup * 64;
    if (row >= args.rows) {
      Skip<T>(ring, empty, cursor, args.chunks);
      continue;
    }
    float d[T::kColumns / 2];
    Multiply<T, kType>(ring, empty, cursor, args.chunks, d);
    Finish<T, kType>(args, results + warpgroup * T::kResultBytes, row, unit.column * T::kOutputs,
                     d);
  }
  ptx::BulkWait();
}

template <class T, HalfType kType>
__global__ void __launch_bounds__(kThreads, 1)
    GatedLinearKernel(const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CUtensorMap w_map, const Args args) {
  // Stages, results, barriers: nothing is left for making up an alignment.
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* results = shared + kStages * T::kStageBytes;
  auto* full = reinterpret_cast<uint64_t*>(results + 2 * T::kResultBytes);
  uint64_t* empty = full + kStages;
  const Ring ring = {.full = full, .empty = empty, .stages = shared};
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < kStages; ++i) {
      ptx::MbarrierInit(&full[i], 1);
      ptx::MbarrierInit(&empty[i], T::kCluster * kConsumers / 32);
    }
    ptx::MbarrierInitFence();
    ptx::TmaPrefetchDescriptor(&x_map);
    ptx::TmaPrefetchDescriptor(&w_map);
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) ptx::ClusterSync();
  ptx::DependencyTrigger();
  if (threadIdx.x >= kConsumers) {
    ptx::ReleaseRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers) KeepRingFull<T>(args, &x_map, &w_map, ring);
  } else {
    ptx::AcquireRegisters<kConsumerRegisters>();
    ptx::DependencyWait();
    Consume<T, kType>(args, ring, results);
  }
  // The other block may still send weights here, and its consumers arrive.
  if constexpr (T::kCluster > 1) ptx::ClusterSync();
}

struct Launchable {
  const GatedLinearParams& p;
  const GatedLinearPlan& plan;
  CudaStream stream;
  LaunchOrder order;
};

template <class T, HalfType kType>
KernelStatus LaunchTile(const Launchable& launch) {
  const GatedLinearParams& p = launch.p;
  const GatedLinearPlan& plan = launch.plan;
  CUtensorMap x_map;
  CUtensorMap w_map;
  KernelStatus encoded = EncodeTensorMap({.base = p.x,
                                          .type = p.type,
                                          .rows = p.rows,
                                          .cols = p.k,
                                          .row_stride = p.x_stride,
                                          .box_rows = kGatedTileRows,
                                          .box_cols = kChunk},
                                         &x_map);
  if (encoded != KernelStatus::kOk) return encoded;
  encoded = EncodeTensorMap({.base = p.w,
                             .type = p.type,
                             .rows = int64_t{2} * p.n,
                             .cols = p.k,
                             .row_stride = p.k,
                             .box_rows = T::kWeightBoxRows,
                             .box_cols = kChunk},
                            &w_map);
  if (encoded != KernelStatus::kOk) return encoded;
  const int32_t num_units = plan.num_row_units * plan.num_column_tiles;
  const int32_t clusters = plan.num_blocks / T::kCluster;
  const Args args = {.y = static_cast<uint16_t*>(p.y),
                     .y_stride = p.y_stride,
                     .rows = p.rows,
                     .n = p.n,
                     .chunks = (p.k + kChunk - 1) / kChunk,
                     .num_units = num_units,
                     .turns = (num_units + clusters - 1) / clusters,
                     .num_row_units = plan.num_row_units,
                     .num_column_tiles = plan.num_column_tiles,
                     .group_rows = plan.group_rows};
  return Launch({.grid = dim3(static_cast<unsigned>(plan.num_blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = T::kSharedBytes,
                 .stream = launch.stream,
                 .order = launch.order,
                 .cluster = T::kCluster},
                GatedLinearKernel<T, kType>, x_map, w_map, args);
}

template <HalfType kType>
KernelStatus LaunchType(const Launchable& launch) {
  const GatedLinearPlan& plan = launch.plan;
  if (plan.columns == 256) {
    return plan.cluster == 2 ? LaunchTile<Tile<256, 2>, kType>(launch)
                             : LaunchTile<Tile<256, 1>, kType>(launch);
  }
  return plan.cluster == 2 ? LaunchTile<Tile<224, 2>, kType>(launch)
                           : LaunchTile<Tile<224, 1>, kType>(launch);
}

bool Aligned16(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace

KernelStatus GatedLinearWithPlan(const GatedLinearParams& p, const GatedLinearPlan& plan,
                                 CudaStream stream, LaunchOrder order) {
  if (!GatedLinearSupports({.rows = p.rows, .n = p.n, .k = p.k})) {
    return KernelStatus::kUnsupported;
  }
  if (!Aligned16(p.x) || !Aligned16(p.w) || !Aligned16(p.y) || p.x_stride % 8 != 0 ||
      p.y_stride % 8 != 0 || p.x_stride < p.k || p.y_stride < p.n) {
    return KernelStatus::kInvalidArgument;
  }
  const Launchable launch = {p, plan, stream, order};
  return p.type == HalfType::kBF16 ? LaunchType<HalfType::kBF16>(launch)
                                   : LaunchType<HalfType::kF16>(launch);
}

KernelStatus GatedLinear(const GatedLinearParams& p, CudaStream stream, LaunchOrder order) {
  const GatedLinearShape shape = {.rows = p.rows, .n = p.n, .k = p.k};
  if (!GatedLinearSupports(shape)) return KernelStatus::kUnsupported;
  if (p.num_sms < 2) return KernelStatus::kInvalidArgument;
  return GatedLinearWithPlan(p, PlanGatedLinear(shape, p.num_sms), stream, order);
}

}  // namespace baton::kernels
