// Paged causal attention with wgmma and TMA, warp-specialised and persistent:
//   out[t, h, :] = softmax(cap(scale * q[t, h, :] K^T)) V    K, V [kv_length, head_dim], paged.
// One block a multiprocessor takes tiles of 128 query rows (tokens times folded heads) off the work
// list by a counter. Two consumer warpgroups have 64 rows each and go over the same keys, 128 at a
// time (64 for head_dim 256), from the diagonal backwards; a producer warp feeds K and V through a
// ring in shared memory by TMA, in boxes of min(block_tokens, 64) rows and 64 columns, and one warp
// a consumer fetches queries, those of the next tile while this one is in work.
// prefill_sm90_consumer.cuh tells how products and softmax overlap, across tiles of work too.
//
// FLOPs: 4 * head_dim a (row, key), half of the square for a causal prompt. Bytes: K and V of the
// context once a tile of rows, from the second-level cache if the work list is in order. Bound by
// the tensor cores: 64 x 128 x head_dim 128 takes 512 cycles a product, two products; the 8,192
// exponentials of the same take 512 cycles of the special function unit, which must be hidden.
//
// Limits: head_dim 64, 128 or 256; a row's rounding depends on where its 128 rows begin and, by
// the order of keys only, not on the batch. Deterministic for equal chunks.
// Shah et al., FlashAttention-3, 2024.
#include <cstdint>

#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_sm90_shared.cuh"
#include "kernels/prefill_attention/prefill_tile.cuh"

namespace baton::kernels {

// In prefill_attention_sm90_dim*.cu.
template <int kDim>
KernelStatus PrefillAttentionSm90OfDim(const Sm90Params& params, CudaStream stream,
                                       LaunchOrder order);

KernelStatus PrefillAttentionSm90(const PrefillAttentionParams& p, CudaStream stream,
                                  LaunchOrder order) {
  const PagedKv16& kv = p.kv;
  if (!PrefillSm90Supports(kv.head_dim, 1 << kv.block_tokens_log2)) {
    return KernelStatus::kUnsupported;
  }
  const KernelStatus status = CheckPrefillParams(p, 8);
  if (status != KernelStatus::kOk) return status;
  if (p.dispenser == nullptr || kv.block_stride % kv.head_dim != 0 ||
      kv.layer_offset % kv.head_dim != 0) {
    return KernelStatus::kInvalidArgument;
  }
  const auto rows = [&](int64_t elements) { return static_cast<int32_t>(elements / kv.head_dim); };
  const Sm90Params params = {.p = p,
                             .block_rows = rows(kv.block_stride),
                             .layer_row = rows(kv.layer_offset),
                             .head_rows = rows(kv.head_stride),
                             .value_rows = rows(kv.value_offset),
                             .box_rows_log2 = kv.block_tokens_log2 < 6 ? kv.block_tokens_log2 : 6};
  switch (kv.head_dim) {
    case 64:
      return PrefillAttentionSm90OfDim<64>(params, stream, order);
    case 128:
      return PrefillAttentionSm90OfDim<128>(params, stream, order);
    default:
      return PrefillAttentionSm90OfDim<256>(params, stream, order);
  }
}

}  // namespace baton::kernels
