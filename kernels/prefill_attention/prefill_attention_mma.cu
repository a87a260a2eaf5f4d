// Paged causal attention with mma.sync m16n8k16:
//   out[t, h, :] = softmax(cap(scale * q[t, h, :] K^T)) V    K, V [kv_length, head_dim], paged.
// A block of 4 warps takes tiles of 64 query rows (tokens times folded heads; a warp has 16 rows)
// off the work list, in steps of the grid, and goes over the keys 64 at a time, from the tile of
// the first visible key upwards. K and V come by cp.async, the next 64 keys while these are used.
//
// Bits: key tiles lie at absolute multiples of 64, every row's sums run over them in
// order, and a tile in which a row sees no key leaves it as it was, to the bit (factor 1, products
// 0). So a row's bits depend neither on its neighbours, nor on the chunk that it came in, nor on
// the block size. (A KV split would break that; so long contexts of few rows are slow here.)
//
// FLOPs: 4 * head_dim a (row, key). Bytes: K and V of the context once a tile of rows.
// Bound by the tensor cores through mma.sync, which on Hopper reach about 60 % of wgmma's rate.
// Measured, one H200, bf16, 4 x 4k: 178 TFLOP/s at head_dim 128, 194 at 64, 114 at 256, so 0.2 to
// 0.4 of cuDNN: a warp has 16 rows, and reads all of K and V from shared memory for them.
// Any even head_dim: rows are padded with zeros to the next of the compiled widths.
// Dao, FlashAttention-2, 2023.
#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_tile.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"

namespace baton::kernels {
namespace {

constexpr int kRows = 64;
constexpr int kKeys = 64;
constexpr int kThreads = 128;
constexpr int kStages = 2;

// Shared memory: Q, then K and V of each stage, rows padded by 16 bytes against bank conflicts.
template <int kDim>
struct Layout {
  static constexpr uint32_t kPitch = (kDim + 8) * 2;
  static constexpr uint32_t kTileBytes = 64 * kPitch;
  static constexpr uint32_t kBytes = kTileBytes * (1 + 2 * kStages);
  static constexpr bool kQueryInRegisters = kDim <= 128;
  static constexpr int kBlocksPerMultiprocessor = kDim <= 64 ? 3 : kDim <= 128 ? 2 : 1;
};

// One warp's 16 rows; lane i holds rows i / 4 and i / 4 + 8.
template <int kDim>
struct RowState {
  float out[kDim / 8][4];  // Sums of p v.
  float maximum[2];        // Of the scores so far, times scale * log2(e); -inf before the first.
  float sum[2];            // Of p, over this lane's columns.
};

struct Rows {
  int32_t position[2];   // Of this lane's two rows.
  int32_t first_key[2];  // The first key they see.
};

// How 128 threads copy 64 rows of head_dim elements: kLanes threads a row, each one piece of kPiece
// elements, columns from head_dim on left as they are (zero from the start).
template <int kDim, int kPiece>
struct CopyShape {
  static constexpr int kLanes = kDim / kPiece <= 16 ? (kDim / kPiece <= 2   ? 2
                                                       : kDim / kPiece <= 4 ? 4
                                                       : kDim / kPiece <= 8 ? 8
                                                                            : 16)
                                                    : 32;
  static constexpr int kRowsAtOnce = kThreads / kLanes;
  static constexpr int kPasses = 64 / kRowsAtOnce;
};

// One piece, zeros unless `valid`.
template <int kPiece>
__device__ __forceinline__ void CopyPiece(uint32_t to, const uint16_t* from, bool valid) {
  if constexpr (kPiece == 8) {
    ptx::CpAsync16(to, from, valid ? 16 : 0);
  } else {
    ptx::CpAsync4(to, from, valid ? 4 : 0);
  }
}

template <int kDim, int kPiece>
__device__ __forceinline__ void CopyQueries(const PrefillAttentionParams& p,
                                            const PrefillTile& tile, uint32_t shared) {
  using S = CopyShape<kDim, kPiece>;
  const int lane = threadIdx.x % S::kLanes;
#pragma unroll 1
  for (int pass = 0; pass < S::kPasses; ++pass) {
    const int row = threadIdx.x / S::kLanes + pass * S::kRowsAtOnce;
    const int token = row / tile.heads;
    const bool valid = token < tile.num_tokens;
    const uint16_t* from = static_cast<const uint16_t*>(p.q) +
                           (tile.q_row + (valid ? token : 0)) * p.q_stride +
                           int64_t{tile.head + row - token * tile.heads} * p.kv.head_dim;
    for (int column = lane * kPiece; column < p.kv.head_dim; column += S::kLanes * kPiece) {
      CopyPiece<kPiece>(shared + row * Layout<kDim>::kPitch + column * 2, from + column, valid);
    }
  }
}

// K and V of keys [first, first + 64), zeros for those outside of [key_begin, kv_length).
template <int kDim, int kPiece>
__device__ __forceinline__ void CopyKeys(const PrefillAttentionParams& p, const PrefillTile& tile,
                                         int32_t first, int32_t key_begin, uint32_t shared) {
  using S = CopyShape<kDim, kPiece>;
  const PagedKv16& kv = p.kv;
  const int lane = threadIdx.x % S::kLanes;
  const int32_t* table = p.block_tables + tile.table;
  const int32_t mask = (1 << kv.block_tokens_log2) - 1;
  const uint16_t* head =
      static_cast<const uint16_t*>(kv.base) + kv.layer_offset + tile.kv_head * kv.head_stride;
  shared += threadIdx.x / S::kLanes * Layout<kDim>::kPitch;
#pragma unroll(S::kPasses <= 8 ? S::kPasses : 4)
  for (int pass = 0; pass < S::kPasses; ++pass) {
    const int32_t key = first + threadIdx.x / S::kLanes + pass * S::kRowsAtOnce;
    const bool valid = key >= key_begin && key < tile.kv_length;
    const int64_t block = valid ? table[key >> kv.block_tokens_log2] : 0;
    const uint16_t* from = head + block * kv.block_stride + (key & mask) * kv.head_dim;
    const uint32_t to = shared + pass * S::kRowsAtOnce * Layout<kDim>::kPitch;
    for (int column = lane * kPiece; column < kv.head_dim; column += S::kLanes * kPiece) {
      CopyPiece<kPiece>(to + column * 2, from + column, valid);
      CopyPiece<kPiece>(to + column * 2 + Layout<kDim>::kTileBytes, from + column + kv.value_offset,
                        valid);
    }
  }
}

// The 16 x 16 elements at (row, column) as an A operand: the warp's 16 rows from `row`.
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], uint32_t shared, uint32_t pitch, int row,
                                      int column) {
  const int lane = threadIdx.x % 32;
  ptx::LoadMatrixX4(a, shared + (row + lane % 16) * pitch + (column + lane / 16 * 8) * 2);
}

// scores[64 keys] = q k^T of this warp's rows.
template <HalfType kType, int kDim>
__device__ __forceinline__ void Scores(float (&scores)[kKeys / 8][4],
                                       const uint32_t (&q)[kDim / 16][4], uint32_t shared_q,
                                       uint32_t shared_k) {
  constexpr uint32_t kPitch = Layout<kDim>::kPitch;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (auto& row : scores) row[0] = row[1] = row[2] = row[3] = 0;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4];
    if constexpr (Layout<kDim>::kQueryInRegisters) {
      a[0] = q[k][0], a[1] = q[k][1], a[2] = q[k][2], a[3] = q[k][3];
    } else {
      LoadA(a, shared_q, kPitch, warp * 16, k * 16);
    }
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];  // Keys n * 16 + {0..7, 8..15}, columns k * 16 + {0..7, 8..15}.
      ptx::LoadMatrixX4(b, shared_k + (n * 16 + lane % 8 + lane / 16 * 8) * kPitch +
                               (k * 16 + lane / 8 % 2 * 8) * 2);
      ptx::MmaM16N8K16<kType>(scores[2 * n], a, b[0], b[1]);
      ptx::MmaM16N8K16<kType>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Scores to weights: cap, mask, new maxima; scales what was summed before. kMask changes no bit of
// what it lets through, hence the explicit roundings.
template <bool kMask, int kDim>
__device__ __forceinline__ void Softmax(const PrefillAttentionParams& p,
                                        float (&scores)[kKeys / 8][4], RowState<kDim>& state,
                                        const Rows& rows, int32_t first) {
  const float factor = p.softcap > 0 ? kLog2E : p.scale * kLog2E;
  if (p.softcap > 0) {
    const float inner = 2 * kLog2E * p.scale / p.softcap;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (float& s : scores[n]) s = SoftcappedScore(s, inner, p.softcap);
    }
  }
  const int32_t column = first + threadIdx.x % 4 * 2;
  float maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& s = scores[n][i];
      if constexpr (kMask) {
        const int32_t at = n * 8 + i % 2;
        const bool visible =
            at <= rows.position[i / 2] - column && at >= rows.first_key[i / 2] - column;
        s = visible ? s : -INFINITY;
      }
      maximum[i / 2] = fmaxf(maximum[i / 2], s);
    }
  }
  float rescale[2];
  float shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xFFFFFFFF, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xFFFFFFFF, maximum[r], 2));
    maximum[r] = fmaxf(maximum[r], state.maximum[r]);
    // A row that has seen no key yet keeps -inf, and its weights and sums stay zero.
    shift[r] = __fmul_rn(maximum[r] == -INFINITY ? 0 : maximum[r], factor);
    // Exactly 1 where a tile beyond the row's last key changes nothing.
    rescale[r] = ptx::Ex2(__fadd_rn(__fmul_rn(state.maximum[r], factor), -shift[r]));
    state.maximum[r] = maximum[r];
  }
  float total[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = ptx::Ex2(__fmaf_rn(scores[n][i], factor, -shift[i / 2]));
      total[i / 2] = __fadd_rn(total[i / 2], scores[n][i]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) state.sum[r] = __fmaf_rn(state.sum[r], rescale[r], total[r]);
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[n][i] = __fmul_rn(state.out[n][i], rescale[i / 2]);
  }
}

// out += p v over the 64 keys.
template <HalfType kType, int kDim>
__device__ __forceinline__ void AddValues(RowState<kDim>& state,
                                          const float (&scores)[kKeys / 8][4], uint32_t shared_v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = &scores[2 * k + i / 2][i % 2 * 2];
      a[i] = PackPair<kType>(from[0], from[1]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];  // Keys k * 16 + {0..7, 8..15}, columns n * 16 + {0..7, 8..15}.
      ptx::LoadMatrixX4Transposed(
          b, shared_v + (k * 16 + lane % 16) * Layout<kDim>::kPitch + (n * 16 + lane / 16 * 8) * 2);
      ptx::MmaM16N8K16<kType>(state.out[2 * n], a, b[0], b[1]);
      ptx::MmaM16N8K16<kType>(state.out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

template <HalfType kType, int kDim>
__device__ __forceinline__ void StoreRows(const PrefillAttentionParams& p, const PrefillTile& tile,
                                          const RowState<kDim>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    const int row = threadIdx.x / 32 * 16 + lane / 4 + r * 8;
    const int token = row / tile.heads;
    if (token >= tile.num_tokens) continue;
    const float inverse = 1 / sum;
    auto* out = static_cast<uint16_t*>(p.out) + (tile.q_row + token) * p.out_stride +
                int64_t{tile.head + row - token * tile.heads} * p.kv.head_dim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column < p.kv.head_dim) {
        *reinterpret_cast<uint32_t*>(out + column) =
            PackPair<kType>(state.out[n][2 * r] * inverse, state.out[n][2 * r + 1] * inverse);
      }
    }
  }
}

template <HalfType kType, int kDim, int kPiece>
__device__ __forceinline__ void AttendTile(const PrefillAttentionParams& p, const PrefillTile& tile,
                                           uint32_t shared) {
  using L = Layout<kDim>;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int32_t key_begin = tile.FirstKey(p.window);
  const int32_t first_tile = key_begin / kKeys;
  const int32_t last_tile = tile.last_position() / kKeys;
  const auto stage = [&](int32_t j) {
    return shared + L::kTileBytes * (1 + (j - first_tile) % kStages * 2);
  };
  CopyQueries<kDim, kPiece>(p, tile, shared);
  CopyKeys<kDim, kPiece>(p, tile, first_tile * kKeys, key_begin, stage(first_tile));
  ptx::CpAsyncCommit();

  Rows rows;
  RowState<kDim> state;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = (warp * 16 + lane / 4 + r * 8) / tile.heads;
    rows.position[r] = tile.first_position + min(token, tile.num_tokens - 1);
    rows.first_key[r] = p.window > 0 ? rows.position[r] - p.window + 1 : 0;
    state.maximum[r] = -INFINITY;
    state.sum[r] = 0;
  }
#pragma unroll
  for (auto& out : state.out) out[0] = out[1] = out[2] = out[3] = 0;

  const int32_t first_row_position =
      tile.first_position + min(warp * 16 / tile.heads, tile.num_tokens - 1);
  const int32_t last_row_first_key =
      p.window > 0 ? tile.first_position + min((warp * 16 + 15) / tile.heads, tile.num_tokens - 1) -
                         p.window + 1
                   : 0;
  uint32_t q[kDim / 16][4];
  for (int32_t j = first_tile; j <= last_tile; ++j) {
    if (j < last_tile) CopyKeys<kDim, kPiece>(p, tile, (j + 1) * kKeys, key_begin, stage(j + 1));
    ptx::CpAsyncCommit();
    ptx::CpAsyncWait<1>();
    __syncthreads();
    if constexpr (L::kQueryInRegisters) {
      if (j == first_tile) {
#pragma unroll
        for (int k = 0; k < kDim / 16; ++k) LoadA(q[k], shared, L::kPitch, warp * 16, k * 16);
      }
    }
    float scores[kKeys / 8][4];
    Scores<kType, kDim>(scores, q, shared, stage(j));
    // Uniform within the warp: the first row sees least of the end, the last row of the start.
    const bool all_visible =
        (j + 1) * kKeys <= first_row_position + 1 && j * kKeys >= last_row_first_key;
    if (all_visible) {
      Softmax<false, kDim>(p, scores, state, rows, j * kKeys);
    } else {
      Softmax<true, kDim>(p, scores, state, rows, j * kKeys);
    }
    AddValues<kType, kDim>(state, scores, stage(j) + L::kTileBytes);
    __syncthreads();  // The stage is free.
  }
  StoreRows<kType, kDim>(p, tile, state);
}

template <HalfType kType, int kDim, int kPiece>
__global__ void __launch_bounds__(kThreads, Layout<kDim>::kBlocksPerMultiprocessor)
    PrefillAttentionMmaKernel(const __grid_constant__ PrefillAttentionParams p) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t shared = ptx::SharedAddress(shared_bytes);
  // Padding columns are read as operands and never written again.
  for (uint32_t i = threadIdx.x * 16; i < Layout<kDim>::kBytes; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(shared_bytes + i) = uint4{0, 0, 0, 0};
  }
  __syncthreads();
  ptx::DependencyWait();
  ptx::DependencyTrigger();
  const int32_t num_work = *p.num_work;
  for (int32_t i = blockIdx.x; i < num_work; i += gridDim.x) {
    const PrefillTile tile = LoadTile(p, p.work[i], kRows);
    if (tile.num_tokens > 0) AttendTile<kType, kDim, kPiece>(p, tile, shared);
  }
}

template <HalfType kType, int kDim, int kPiece>
KernelStatus LaunchMma(const PrefillAttentionParams& p, CudaStream stream, LaunchOrder order) {
  constexpr uint32_t kBytes = Layout<kDim>::kBytes;
  return Launch(
      LaunchConfig{.grid = dim3(p.num_multiprocessors * Layout<kDim>::kBlocksPerMultiprocessor),
                   .block = dim3(kThreads),
                   .shared_bytes = kBytes,
                   .stream = stream,
                   .order = order},
      PrefillAttentionMmaKernel<kType, kDim, kPiece>, p);
}

template <HalfType kType>
KernelStatus LaunchMmaOfType(const PrefillAttentionParams& p, CudaStream stream,
                             LaunchOrder order) {
  const int32_t dim = p.kv.head_dim;
  if (dim % 8 != 0) {
    return dim <= 64 ? LaunchMma<kType, 64, 2>(p, stream, order)
                     : LaunchMma<kType, 256, 2>(p, stream, order);
  }
  if (dim <= 16) return LaunchMma<kType, 16, 8>(p, stream, order);
  if (dim <= 32) return LaunchMma<kType, 32, 8>(p, stream, order);
  if (dim <= 64) return LaunchMma<kType, 64, 8>(p, stream, order);
  if (dim <= 96) return LaunchMma<kType, 96, 8>(p, stream, order);
  if (dim <= 128) return LaunchMma<kType, 128, 8>(p, stream, order);
  return LaunchMma<kType, 256, 8>(p, stream, order);
}

}  // namespace

KernelStatus PrefillAttentionMma(const PrefillAttentionParams& p, CudaStream stream,
                                 LaunchOrder order) {
  const int32_t dim = p.kv.head_dim;
  if (dim < 8 || dim > kPrefillHeadDimMax || dim % 2 != 0) return KernelStatus::kUnsupported;
  const KernelStatus status = CheckPrefillParams(p, dim % 8 == 0 ? 8 : 2);
  if (status != KernelStatus::kOk) return status;
  return p.kv.type == HalfType::kBF16 ? LaunchMmaOfType<HalfType::kBF16>(p, stream, order)
                                      : LaunchMmaOfType<HalfType::kF16>(p, stream, order);
}

}  // namespace baton::kernels
