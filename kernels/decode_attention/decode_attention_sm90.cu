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
// written and read a row and partial result. FLOPs: 4 * head_dim a (row, head, key): at 32 rows a
// KV head 32 a byte, far below what mma.sync does. So bound by memory: 64 x 4096 tokens, 8 KV heads
// of 128: 1.07 GB, 251 us at the rate of a copy.
//
// Measured, share of the bandwidth of a copy (4.28 TB/s, read and written) in the same run; H200,
// 32 query heads, bf16, blocks of 64 in random order, cold, in a graph of overlapped launches:
//   batch x keys   64 x 4096   256 x 1024   64 x 1024   8 x 1024   1 x 32768   1 x 4096   1 x 1024
//   us                   243          246          67       12.4        34.8        8.6        5.3
//   share               1.03         1.02        0.94       0.64        0.90       0.46       0.18
// 64 x 4096 with 4 and 8 query rows: 1.00, 0.95; head_dim 64: 1.00, 256 (64 x 2048): 1.04; fixed
// splits of 256: 0.95. A small step is a chain of latencies: launch, first tile, sums over warps,
// count, partial results.
//
// Limits: head_dim a multiple of 8 up to 256, computed as 64, 128 or 256; 1 to 8 query rows a
// sequence. Prior art: Flash-Decoding (split over the keys), FlashInfer (plan and run, work lists),
// stream-K (Osama et al. 2023: equal contiguous runs), FlashMLA.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/decode_attention/decode_attention_consumer.cuh"
#include "kernels/decode_attention/decode_attention_cuda.h"
#include "kernels/decode_attention/decode_attention_producer.cuh"
#include "kernels/decode_attention/decode_attention_state.cuh"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/tensor_map.h"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"

namespace baton::kernels {
namespace decode {

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
  if (threadIdx.x >= kConsumerThreads) {
    Produce<kHeadDim>(p, shared_memory, shared);
  } else {
    Consume<kType, kHeadDim, kRowBlocks>(p, shared_memory, shared);
  }
}

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
  // One, unless asked: fewer, longer runs have fewer ends. Tiles of 64 columns are small, and need
  // more warps to keep up.
  const int32_t blocks_per_sm =
      tuning.blocks_per_sm > 0 ? tuning.blocks_per_sm : (head_dim == 64 ? 2 : 1);
  c.blocks_per_sm = std::min(blocks_per_sm, blocks_per_sm_max);
  const int32_t stage_bytes = 4 * kDecodeTileTokens * head_dim;
  // RowState::kQuerySharedBytes.
  const auto other_bytes =
      static_cast<int32_t>(sizeof(Shared)) + (row_blocks == 4 ? row_blocks * head_dim * 16 : 0);
  // Of the 228 KiB of a multiprocessor 1 KiB goes to each thread block.
  const int32_t ring_bytes_max = 228 * 1024 / c.blocks_per_sm - 1024 - other_bytes;
  const int32_t num_stages = tuning.num_stages > 0
                                 ? tuning.num_stages
                                 : std::max(3, 128 * 1024 / stage_bytes / c.blocks_per_sm);
  // 128 KiB on their way to each multiprocessor measured better than 96 and 192.
  c.num_stages = std::min({num_stages, ring_bytes_max / stage_bytes, kStagesMax});
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
  map.l2_promotion_bytes = p.tuning.l2_promotion_bytes > 0 ? p.tuning.l2_promotion_bytes : 128;
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
  k->metadata_is_early = p.metadata_is_early;
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
