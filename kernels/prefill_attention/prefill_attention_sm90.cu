// Paged causal attention with wgmma and TMA, warp-specialised and persistent:
//   out[t, h, :] = softmax(cap(scale * q[t, h, :] K^T)) V    K, V [kv_length, head_dim], paged.
// One block a multiprocessor takes tiles of 128 query rows (192 for head_dim 64; tokens times
// folded heads) off the work list, the first two by its number, then by a counter. Its consumer
// warpgroups have 64 rows each and go over the same keys, 128 at a time (64 for head_dim 256, and
// for 64 with a softcap), from the diagonal backwards; a producer
// warp feeds K and V through a ring in shared memory by TMA, in boxes of min(block_tokens, 64) rows
// and 64 columns, and one warp a consumer fetches queries, those of the next tile while this one is
// in work (for head_dim 256 into the second-level cache only). prefill_sm90_consumer.cuh tells how
// products and softmax overlap, across tiles too.
//
// FLOPs: 4 * head_dim a (row, key), half of the square for a causal prompt. Bytes: K and V of the
// context once a tile of rows, from the second-level cache if the work list is in order. Bound by
// the tensor cores: 64 x 128 x head_dim 128 takes 512 cycles a product, two products; the 8,192
// exponentials of the same take 512 cycles of the special function unit, which must be hidden.
//
// Measured, one H200, bf16, shuffled blocks of 64 tokens, TFLOP/s (causal halved) after a fifth of
// a second, when the limit of 700 W holds the clock near 1.6 GHz, beside cuDNN on contiguous
// tensors in the same run (gpu_bench, bench/gpu_anchors.py):
//   head_dim 128, 32 heads   16 x 1k   439   cuDNN 462
//                             4 x 4k   580         514
//                             2 x 8k   620         529
//                             1 x 16k  640         563
//   head_dim 64, 64 heads     4 x 4k   462         446
//                             1 x 16k  528         441
//   head_dim 256, 16 heads    4 x 4k   601         641
//                             1 x 16k  655         610
// Blocks of 16 tokens cost 14 % at 2 x 8k (eight boxes a tile). At 16 x 1k the tensor cores are
// busy 60 % of the cycles: half of the pairs of a tile's last step are masked, and a tile has 4.5
// steps.
//
// What did not help at head_dim 128: a third stage of K (nothing; it is there because the keys are
// held through the softmax); doing half of the keys in a first step whose rows see no more (nothing
// at 16 x 1k, -3 % at 1 x 16k: it puts a branch into every step). With the softmax that looked for
// a maximum in every step: V's product before the scores' (-3 %), queries in registers and a third
// stage (-3 %; +2 % at 16 x 1k), 160 keys a step (within noise), no turns among the consumers
// (slower by 5 %, by 17 % at 4 x 4k).
//
// Limits: head_dim 64, 128 or 256. Short prompts pay for the first and last step of each tile.
// Scores that tower over those of later keys, by a factor of 2^64 (2^14 for float16) in the
// weights, cost the step another product.
//
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
