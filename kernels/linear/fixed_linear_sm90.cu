// y[m, n] = sum_k x[m, k] w[n, k] + bias[n]          x [rows, k], w [n, k], y [rows, n]
// gated: w has 2n rows in groups of 8, gate then up; y = silu(gate) * up
//
// The bits of SkinnyLinear at the speed of a product of many rows. As there, weights are the 64-row
// operand of wgmma and tokens its columns, and the sum over k is cut where two runs meet
// (skinny_linear_plan.h): each part is summed from zero, and the parts are added in the order of k.
// Here one block makes all parts of a tile, one after the other: a thread holds the sum of the
// parts and the part that is being made, and that bounds a tile to 192 tokens.
//
// A persistent grid of blocks or pairs takes tiles of 128 weight rows by 192, 128 or 64 tokens in
// turn (fixed_linear_plan.h). In a block one thread keeps a ring of 64 columns of k full by the
// copy engine; two warpgroups multiply 64 weight rows each. The blocks of a pair have the same
// tokens: each fetches half of them and sends it to both. Results are transposed on their way to
// shared memory and leave by the copy engine while the next tile is being multiplied.
//
// FLOPs: 2 rows n k (n once more when gated). Bytes: 2 n k of weights for each group of token
// tiles, 2 rows (k + n). Bound by the tensor cores, from some 2000 rows on by power.
//
// Measured on one H200, bf16, weights cold, overlapped launches in a graph, TFLOP/s at 512 / 2048 /
// 4096 rows: 6144x4096 567 / 732 / 730, 4096x4096 641 / 680 / 644, gated 14336x4096 650 / 614 /
// 627, 4096x14336 644 / 644 / 653. In long runs, turn about with the best of cuBLASLt's algorithms,
// the latter's time over ours at 2048 / 4096 rows: 0.96 / 0.95, 0.91 / 0.98, 28672x4096 0.92 / 0.90
// and 0.90 / 0.90. A prefill step of 4096 tokens of the 8B shape: 37.9 to 40.2 thousand tokens a
// second in four runs, 41.7 with cuBLASLt and gated_linear, 14 with the skinny kernel 64 rows at a
// time.
//
// Beside it SkinnyLinear is slower with few weights, faster where reading them is most of the work
// (SkinnyLinearIsFaster; 256 sequences of the 8B shape: 19.3 ms a step, 19.7 by it alone).
//
// Limits: not split over blocks along k, so few tiles leave multiprocessors idle. The end of a tile
// is not overlapped with products of the next. Prior art: as gated_linear_sm90.cu.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/launch/grouped_units.h"
#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/linear/fixed_linear_cuda.h"
#include "kernels/linear/skinny_linear_epilogue.cuh"
#include "kernels/linear/skinny_linear_plan.h"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/proxy_fence.cuh"
#include "kernels/ptx/register_allocation.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_wide.cuh"

namespace baton::kernels {
namespace {

constexpr int kColumns = 64;  // Of k in a stage: 128 bytes of a row, swizzled.
constexpr int kRowBytes = 128;
// The skinny kernel multiplies whole chunks, also past k, and so must we: adding a product of zeros
// turns a sum of -0 into +0.
constexpr int kStagesOfChunk = kSkinnyChunkColumns / kColumns;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kThreads = kConsumers + kWarpgroup;
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;
constexpr int kSharedMax = 227 * 1024;
constexpr int kBarriersMax = 128;

template <int kTokens_, int kCluster_>
struct Tile {
  static constexpr int kTokens = kTokens_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kWeightBytes = kSkinnyTileRows * kRowBytes;
  static constexpr int kTokenBoxRows = kTokens / kCluster;
  static constexpr int kTokenBoxBytes = kTokenBoxRows * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
  // Results of a warpgroup leave in so many parts, where that makes room for a stage: [kSentTokens]
  // [64 outputs], swizzled as the copy engine does; gated [kSentTokens][32].
  static constexpr int kParts = kTokens > 128 ? 2 : 1;
  static constexpr int kSentTokens = kTokens / kParts;
  static constexpr int kResultBytes = kSentTokens * kRowBytes;
  static constexpr int kStages = (kSharedMax - 2 * kResultBytes - kBarriersMax) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kResultBytes + kBarriersMax;
  static_assert(kTokenBoxBytes % 1024 == 0 && 2 * kStages * 8 <= kBarriersMax);
};

struct Args {
  LinearOutput out;
  int64_t num_chunks;  // Of all tiles, as the skinny kernel counts.
  int32_t num_runs;
  int32_t chunks_per_tile;
  int32_t num_units;
  int32_t num_token_tiles;
  int32_t num_weight_units;
  int32_t group;
  bool by_threads;  // Results are stored by threads.
};

struct Maps {
  CUtensorMap w;
  CUtensorMap x;
  CUtensorMap y;
};

struct Ring {
  uint64_t* full;   // [kStages]: one arrival and the stage's bytes.
  uint64_t* empty;  // [kStages]: one arrival a consumer warp of the cluster.
  unsigned char* stages;
};

template <class T>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == T::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class T>
__device__ __forceinline__ uint32_t Rank() {
  return T::kCluster == 1 ? 0 : ptx::ClusterRank();
}

// What this block makes in its n-th turn; false: nothing, nor later. Every other turn goes
// backwards, so that tiles that are not full fall to all clusters alike.
struct Place {
  int32_t tile;       // Of weights; the last may lie past their end.
  int32_t first_row;  // Of tokens.
};
template <class T>
__device__ __forceinline__ bool PlaceOfTurn(const Args& args, int32_t turn, Place& place) {
  const int32_t clusters = static_cast<int32_t>(gridDim.x) / T::kCluster;
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / T::kCluster;
  const int32_t unit = turn * clusters + (turn % 2 == 0 ? cluster : clusters - 1 - cluster);
  if (unit >= args.num_units) return false;
  const GroupedUnit at =
      GroupedUnitAt(unit, args.num_token_tiles, args.num_weight_units, args.group);
  place.tile = at.column * T::kCluster + static_cast<int32_t>(Rank<T>());
  place.first_row = at.row * T::kTokens;
  return true;
}

template <class T>
__device__ __forceinline__ void LoadWeights(const Maps& maps, const Ring& ring, int stage,
                                            int32_t column, const Place& place) {
  ptx::MbarrierArriveExpectBytes(&ring.full[stage], T::kStageBytes);
  ptx::TmaLoad2d(ring.stages + stage * T::kStageBytes, &maps.w, column,
                 place.tile * kSkinnyTileRows, &ring.full[stage], ptx::kL2EvictNormal);
}

template <class T>
__device__ __forceinline__ void LoadTokens(const Maps& maps, const Ring& ring, int stage,
                                           int32_t column, const Place& place) {
  unsigned char* to = ring.stages + stage * T::kStageBytes + T::kWeightBytes;
  if constexpr (T::kCluster == 1) {
    ptx::TmaLoad2d(to, &maps.x, column, place.first_row, &ring.full[stage], ptx::kL2EvictNormal);
  } else {
    const auto rank = static_cast<int32_t>(Rank<T>());
    ptx::TmaLoad2dMulticast(to + rank * T::kTokenBoxBytes, &maps.x, column,
                            place.first_row + rank * T::kTokenBoxRows, &ring.full[stage],
                            (1 << T::kCluster) - 1, ptx::kL2EvictNormal);
  }
}

// One thread. The weights of the first stages are asked for before the kernel before has ended.
template <class T>
__device__ __forceinline__ void KeepRingFull(const Args& args, const Maps& maps, const Ring& ring) {
  const int32_t stages = args.chunks_per_tile * kStagesOfChunk;
  const int32_t ahead = min(T::kStages, stages);
  Place place;
  PlaceOfTurn<T>(args, 0, place);
  for (int32_t i = 0; i < ahead; ++i) LoadWeights<T>(maps, ring, i, i * kColumns, place);
  ptx::DependencyWait();
  Cursor<T> cursor;
  cursor.parity = 1;  // The ring is empty at first.
  for (int32_t turn = 0; PlaceOfTurn<T>(args, turn, place); ++turn) {
    for (int32_t i = 0; i < stages; ++i) {
      if (turn > 0 || i >= ahead) {
        ptx::MbarrierWait(&ring.empty[cursor.stage], cursor.parity);
        LoadWeights<T>(maps, ring, cursor.stage, i * kColumns, place);
      }
      LoadTokens<T>(maps, ring, cursor.stage, i * kColumns, place);
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

// The product of the next `count` stages, from zero.
template <class T, HalfType kType>
__device__ __forceinline__ void Multiply(const Ring& ring, uint32_t empty, Cursor<T>& cursor,
                                         int32_t count, float (&d)[T::kAccumulators]) {
  using Product = std::conditional_t<(T::kTokens > 64), ptx::WgmmaWide<kType, T::kTokens>,
                                     ptx::Wgmma<kType, T::kTokens>>;
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  int running = 0;
  for (int32_t i = 0; i < count; ++i) {
    ptx::MbarrierWait(&ring.full[cursor.stage], cursor.parity);
    const unsigned char* stage = ring.stages + cursor.stage * T::kStageBytes;
    const uint64_t a = ptx::WgmmaDescriptorSwizzle128(stage + warpgroup * 64 * kRowBytes);
    const uint64_t b = ptx::WgmmaDescriptorSwizzle128(stage + T::kWeightBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
      Product::Run(d, a + step * ptx::kWgmmaDescriptorStepK16,
                   b + step * ptx::kWgmmaDescriptorStepK16, i > 0 || step > 0);
    }
    ptx::WgmmaCommit();
    if (i > 0) {
      ptx::WgmmaWait<1>();
      Release<T>(ring, empty, running);
    }
    running = cursor.stage;
    cursor.Advance();
  }
  ptx::WgmmaWait<0>();
  Release<T>(ring, empty, running);
}

// Chunks from `chunk` on that lie in one run and before `end`.
__device__ __forceinline__ int32_t ChunksOfPart(const Args& args, int64_t chunk, int64_t end) {
  const int64_t run = SkinnyRunOwner(args.num_chunks, args.num_runs, chunk);
  return static_cast<int32_t>(min(SkinnyRunBegin(args.num_chunks, args.num_runs, run + 1), end) -
                              chunk);
}

template <class T, HalfType kType>
__device__ __forceinline__ void MultiplyTile(const Args& args, const Ring& ring, uint32_t empty,
                                             Cursor<T>& cursor, int32_t tile,
                                             float (&sum)[T::kAccumulators]) {
  int64_t chunk = int64_t{tile} * args.chunks_per_tile;
  const int64_t end = chunk + args.chunks_per_tile;
  int32_t count = ChunksOfPart(args, chunk, end);
  Multiply<T, kType>(ring, empty, cursor, count * kStagesOfChunk, sum);
  for (chunk += count; chunk < end; chunk += count) {
    float part[T::kAccumulators];
    count = ChunksOfPart(args, chunk, end);
    Multiply<T, kType>(ring, empty, cursor, count * kStagesOfChunk, part);
#pragma unroll
    for (int i = 0; i < T::kAccumulators; ++i) sum[i] += part[i];
  }
}

// Part `part` of a tile. A warp's 16 weight rows: of every 8 tokens one (gated) or two matrices of
// 8 outputs, transposed.
template <class T, HalfType kType>
__device__ __forceinline__ void WriteResults(const Args& args, unsigned char* results, float2 bias,
                                             int part, const float (&d)[T::kAccumulators]) {
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (args.out.gated) {
    unsigned char* to = results + lane * kRowBytes / 2 + warp * 16;
#pragma unroll
    for (int i = 0; i < T::kSentTokens / 8; i += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = part * T::kSentTokens / 2 + (i + j) * 4;
        packed[j] =
            PackPair<kType>(Gated(d[at], d[at + 2], bias), Gated(d[at + 1], d[at + 3], bias));
      }
      ptx::StoreMatrix4Transposed(to + i * 8 * kRowBytes / 2, packed[0], packed[1], packed[2],
                                  packed[3]);
    }
  } else {
    // Matrices: low and high rows of 8 tokens, then of the next 8.
    const int token = lane / 16 * 8 + lane % 8;
    unsigned char* to =
        results + token * kRowBytes + ((warp * 2 + lane / 8 % 2) ^ (token % 8)) * 16;
#pragma unroll
    for (int i = 0; i < T::kSentTokens / 8; i += 2) {
      const int at = part * T::kSentTokens / 2 + i * 4;
      ptx::StoreMatrix4Transposed(to + i * 8 * kRowBytes,
                                  PackPair<kType>(d[at] + bias.x, d[at + 1] + bias.x),
                                  PackPair<kType>(d[at + 2] + bias.y, d[at + 3] + bias.y),
                                  PackPair<kType>(d[at + 4] + bias.x, d[at + 5] + bias.x),
                                  PackPair<kType>(d[at + 6] + bias.y, d[at + 7] + bias.y));
    }
  }
}

template <class T, HalfType kType>
__device__ __forceinline__ void Finish(const Args& args, const Maps& maps, unsigned char* results,
                                       const Place& place, const float (&d)[T::kAccumulators]) {
  if (args.by_threads) {
    FinishTile<T::kAccumulators, kType>(args.out, place.tile, place.first_row, d);
    return;
  }
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const bool sender = threadIdx.x % kWarpgroup == 0;
  const int32_t n = (place.tile * 2 + warpgroup) * (args.out.gated ? 32 : 64);
  const float2 bias = LoadBias<kType>(args.out, place.tile);
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    ptx::BulkWaitRead();  // What the sender sent before.
    ptx::NamedBarrierSync(1 + warpgroup, kWarpgroup);
    WriteResults<T, kType>(args, results, bias, part, d);
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(1 + warpgroup, kWarpgroup);
    const int32_t row = place.first_row + part * T::kSentTokens;
    if (sender && n < args.out.n && row < args.out.rows) {
      ptx::TmaStore2d(&maps.y, n, row, results);
      ptx::BulkCommit();
    }
    __syncwarp();  // Whole warps take part in barriers and wgmma.
  }
}

template <class T, HalfType kType>
__device__ __forceinline__ void Consume(const Args& args, const Maps& maps, const Ring& ring,
                                        unsigned char* results) {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const uint32_t empty =
      T::kCluster == 1 ? 0 : ptx::AddressInBlock(ring.empty, threadIdx.x % T::kCluster);
  Cursor<T> cursor;
  Place place;
  for (int32_t turn = 0; PlaceOfTurn<T>(args, turn, place); ++turn) {
    float sum[T::kAccumulators];
    MultiplyTile<T, kType>(args, ring, empty, cursor, place.tile, sum);
    Finish<T, kType>(args, maps, results + warpgroup * T::kResultBytes, place, sum);
  }
  ptx::BulkWait();
}

template <class T, HalfType kType>
__global__ void __launch_bounds__(kThreads, 1)
    FixedLinearKernel(const __grid_constant__ Maps maps, const Args args) {
  // Stages, results, barriers: nothing is left for making up an alignment.
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* results = shared + T::kStages * T::kStageBytes;
  auto* full = reinterpret_cast<uint64_t*>(results + 2 * T::kResultBytes);
  uint64_t* empty = full + T::kStages;
  const Ring ring = {.full = full, .empty = empty, .stages = shared};
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < T::kStages; ++i) {
      ptx::MbarrierInit(&full[i], 1);
      ptx::MbarrierInit(&empty[i], T::kCluster * kConsumers / 32);
    }
    ptx::MbarrierInitFence();
    ptx::TmaPrefetchDescriptor(&maps.w);
    ptx::TmaPrefetchDescriptor(&maps.x);
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) ptx::ClusterSync();
  ptx::DependencyTrigger();
  if (threadIdx.x >= kConsumers) {
    ptx::ReleaseRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers) KeepRingFull<T>(args, maps, ring);
  } else {
    ptx::AcquireRegisters<kConsumerRegisters>();
    ptx::DependencyWait();
    Consume<T, kType>(args, maps, ring, results);
  }
  // The other block may still send tokens here, and its consumers arrive.
  if constexpr (T::kCluster > 1) ptx::ClusterSync();
}

bool Aligned(const void* pointer, uintptr_t bytes) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// The copy engine stores whole 16 bytes, also where a row ends within them.
bool StoredByThreads(const FixedLinearParams& p) {
  return p.y_is_f32 || p.n % 8 != 0 || !Aligned(p.y, 16) || p.y_stride % 8 != 0;
}

template <class T>
KernelStatus EncodeMaps(const FixedLinearParams& p, Maps* maps) {
  KernelStatus encoded = EncodeTensorMap({.base = p.w,
                                          .type = p.type,
                                          .rows = int64_t{p.n} * (p.gated ? 2 : 1),
                                          .cols = p.k,
                                          .row_stride = p.k,
                                          .box_rows = kSkinnyTileRows,
                                          .box_cols = kColumns},
                                         &maps->w);
  if (encoded != KernelStatus::kOk) return encoded;
  encoded = EncodeTensorMap({.base = p.x,
                             .type = p.type,
                             .rows = p.rows,
                             .cols = p.k,
                             .row_stride = p.x_stride,
                             .box_rows = T::kTokenBoxRows,
                             .box_cols = kColumns},
                            &maps->x);
  if (encoded != KernelStatus::kOk || StoredByThreads(p)) return encoded;
  return EncodeTensorMap({.base = p.y,
                          .type = p.type,
                          .rows = p.rows,
                          .cols = p.n,
                          .row_stride = p.y_stride,
                          .box_rows = T::kSentTokens,
                          .box_cols = p.gated ? 32 : 64,
                          .swizzle_128 = !p.gated},
                         &maps->y);
}

struct Launchable {
  const FixedLinearParams& p;
  const FixedLinearPlan& plan;
  CudaStream stream;
  LaunchOrder order;
};

template <class T, HalfType kType>
KernelStatus LaunchTile(const Launchable& launch) {
  const FixedLinearParams& p = launch.p;
  const FixedLinearPlan& plan = launch.plan;
  Maps maps = {};
  const KernelStatus encoded = EncodeMaps<T>(p, &maps);
  if (encoded != KernelStatus::kOk) return encoded;
  const SkinnyLinearPlan skinny = PlanSkinnyLinear({1, p.n, p.k, p.gated}, {}, p.num_sms);
  const Args args = {.out = {.bias = p.bias,
                             .y = p.y,
                             .y_stride = p.y_stride,
                             .rows = p.rows,
                             .n = p.n,
                             .y_is_f32 = p.y_is_f32,
                             .gated = p.gated},
                     .num_chunks = int64_t{skinny.num_tiles} * skinny.chunks_per_tile,
                     .num_runs = skinny.num_blocks,
                     .chunks_per_tile = skinny.chunks_per_tile,
                     .num_units = plan.num_token_tiles * plan.num_weight_units,
                     .num_token_tiles = plan.num_token_tiles,
                     .num_weight_units = plan.num_weight_units,
                     .group = plan.group,
                     .by_threads = StoredByThreads(p)};
  return Launch({.grid = dim3(static_cast<unsigned>(plan.num_blocks)),
                 .block = dim3(kThreads),
                 .shared_bytes = T::kSharedBytes,
                 .stream = launch.stream,
                 .order = launch.order,
                 .cluster = T::kCluster},
                FixedLinearKernel<T, kType>, maps, args);
}

template <HalfType kType>
KernelStatus LaunchType(const Launchable& launch) {
  const FixedLinearPlan& plan = launch.plan;
  if (plan.tokens == 64 && plan.cluster == 1) return LaunchTile<Tile<64, 1>, kType>(launch);
  if (plan.tokens == 128 && plan.cluster == 1) return LaunchTile<Tile<128, 1>, kType>(launch);
  if (plan.tokens == 128 && plan.cluster == 2) return LaunchTile<Tile<128, 2>, kType>(launch);
  if (plan.tokens == 192 && plan.cluster == 2) return LaunchTile<Tile<192, 2>, kType>(launch);
  return KernelStatus::kUnsupported;
}

}  // namespace

KernelStatus FixedLinearWithPlan(const FixedLinearParams& p, const FixedLinearPlan& plan,
                                 CudaStream stream, LaunchOrder order) {
  const FixedLinearShape shape = {.rows = p.rows, .n = p.n, .k = p.k, .gated = p.gated};
  if (!FixedLinearSupports(shape)) return KernelStatus::kUnsupported;
  if (!Aligned(p.x, 16) || !Aligned(p.w, 16) || p.x_stride % 8 != 0 || p.x_stride < p.k ||
      !Aligned(p.y, p.y_is_f32 ? 4 : 2) || p.y_stride < p.n || p.num_sms < 2) {
    return KernelStatus::kInvalidArgument;
  }
  const Launchable launch = {p, plan, stream, order};
  return p.type == HalfType::kBF16 ? LaunchType<HalfType::kBF16>(launch)
                                   : LaunchType<HalfType::kF16>(launch);
}

KernelStatus FixedLinear(const FixedLinearParams& p, CudaStream stream, LaunchOrder order) {
  const FixedLinearShape shape = {.rows = p.rows, .n = p.n, .k = p.k, .gated = p.gated};
  if (!FixedLinearSupports(shape)) return KernelStatus::kUnsupported;
  if (p.num_sms < 2) return KernelStatus::kInvalidArgument;
  return FixedLinearWithPlan(p, PlanFixedLinear(shape, p.num_sms), stream, order);
}

}  // namespace baton::kernels
