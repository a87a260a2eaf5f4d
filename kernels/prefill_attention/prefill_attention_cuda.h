// Causal attention of packed chunks of any length over the paged KV pool, on Hopper GPUs:
//   out[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k_j)) v_j     over keys j <= position of t,
// with cap(x) = softcap * tanh(x / softcap) when softcap > 0, and only keys j > position - window
// when window > 0. K and V of the chunk itself are in the pool already.
//
// Two kernels do it, over the same kind of work list (prefill_attention_plan.h), which the caller
// uploads with the step metadata:
//   kSm90  wgmma and TMA; head_dim 64, 128, 256. The fast one.
//   kMma   mma.sync; any even head_dim from 8 to 256.
// In both a row's bits depend neither on how its prompt was cut into chunks nor on the rest of the
// batch, as long as all values are finite, though on the kernel: the deterministic mode has one of
// them do prefill and decode alike.
//
// Keys at or beyond a sequence's length are never read into a result, whatever their slots hold
// (NaN included), and neither are keys before every window; block table entries of blocks that
// hold no visible key are not read. Sequence lengths may change between the plan and the launch
// only if the plan's query lengths stay the same.
// Thread rule: pure functions; launchers may be captured into a graph.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_CUDA_H_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

inline constexpr int32_t kPrefillHeadDimMax = 256;

enum class PrefillKernel : uint8_t { kSm90, kMma };

// One tile of query rows of one sequence: tokens [token_begin, token_begin + rows / heads) of its
// chunk, for query heads [head, head + heads), which share a KV head. Row r of the tile is token
// r / heads, head r % heads.
struct PrefillWork {
  int32_t sequence = 0;
  int32_t head = 0;
  int32_t token_begin = 0;  // Within the chunk.
  int32_t heads = 1;        // Divides num_heads / num_kv_heads.
};

// A CUtensorMap over the whole pool: rows of head_dim elements, boxes of 64 columns and
// min(block_tokens, 64) rows, 128-byte swizzle. Opaque, so that this header needs no CUDA.
struct alignas(128) KvTensorMap {
  uint64_t opaque[16] = {};
};

// Once a pool; calls the driver. kv.base must not move afterwards.
// REQUIRES: head_dim a multiple of 64, block_tokens from 16, fewer than 2^31 rows; otherwise
// kUnsupported.
KernelStatus MakeKvTensorMap(const PagedKv16& kv, KvTensorMap* map);

struct PrefillAttentionParams {
  const void* q = nullptr;  // [num_tokens, num_heads, head_dim], type of the pool.
  void* out = nullptr;      // [num_tokens, num_heads, head_dim]
  int64_t q_stride = 0;     // From a token to the next, in elements.
  int64_t out_stride = 0;
  PagedKv16 kv;
  KvTensorMap kv_map;  // Of kv's pool; kSm90 only.
  int32_t num_heads = 0;
  float scale = 1;
  float softcap = 0;   // 0: none.
  int32_t window = 0;  // 0: none.

  // Step metadata on the device.
  const int32_t* query_starts = nullptr;        // [num_sequences + 1] first row of each sequence.
  const int32_t* kv_lengths = nullptr;          // [num_sequences] this step's rows included.
  const int32_t* block_table_starts = nullptr;  // [num_sequences + 1] into block_tables.
  const int32_t* block_tables = nullptr;        // Block ids.
  const PrefillWork* work = nullptr;            // [*num_work] made for the same kernel.
  const int32_t* num_work = nullptr;            // [1]
  // [2] kSm90's dispenser of work: zero before the first launch that uses it; each launch leaves
  // it zero. Launches that may overlap in time need one each.
  int32_t* dispenser = nullptr;

  // Blocks to launch; the multiprocessors of the device, or fewer to leave room for others.
  int32_t num_multiprocessors = 0;
};

// Whether kSm90 does this shape; kMma does every even head_dim from 8 to 256.
constexpr bool PrefillSm90Supports(int32_t head_dim, int32_t block_tokens) {
  return (head_dim == 64 || head_dim == 128 || head_dim == 256) && block_tokens >= 16;
}

// REQUIRES: q, out and kv.base aligned to 16 bytes and both strides multiples of 8; for a head_dim
// that is no multiple of 8, 4 bytes and even strides.
KernelStatus PrefillAttentionSm90(const PrefillAttentionParams& p, CudaStream stream,
                                  LaunchOrder order);
KernelStatus PrefillAttentionMma(const PrefillAttentionParams& p, CudaStream stream,
                                 LaunchOrder order);
inline KernelStatus PrefillAttention(PrefillKernel kernel, const PrefillAttentionParams& p,
                                     CudaStream stream, LaunchOrder order) {
  return kernel == PrefillKernel::kSm90 ? PrefillAttentionSm90(p, stream, order)
                                        : PrefillAttentionMma(p, stream, order);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_CUDA_H_
