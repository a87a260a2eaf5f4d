// Attention of short query chunks (1 to 8 rows a sequence: decode, and verification of drafts) over
// the paged KV pool on the GPU, grouped query heads packed, split over the keys:
//   out[t, h] = sum_j softmax_j(cap(scale * q[t, h] . k_j)) v_j   over the keys j that row t sees,
// position(t) - window < j <= position(t), cap(x) = softcap * tanh(x / softcap).
//
// The launch is the same for every step (grid, parameters), so a graph may hold it: what changes is
// the work list, which the host plans once a step for all layers (decode_attention_plan.h) and
// uploads to `items` with the other metadata, before the first layer. A caller with layers of
// different windows makes a plan for each window.
//
// Slots of a block beyond the sequence's length, and blocks wholly before the window, may hold
// anything, NaN too. (A NaN in V of a later row of the same chunk does reach the rows before it.)
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CUDA_H_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/decode_attention/decode_attention_item.h"
#include "kernels/launch/launch.h"

namespace baton::kernels {

// Zeros mean defaults, which serve every shape; benches try others. They change no bits.
struct DecodeAttentionTuning {
  int32_t blocks_per_sm = 0;       // Thread blocks: 1 or 2.
  int32_t num_stages = 0;          // Of a thread block's ring of tiles in shared memory.
  int32_t l2_promotion_bytes = 0;  // 64, 128 or 256.
};

struct DecodeAttentionParams {
  const void* q = nullptr;     // [num_tokens, num_heads, head_dim] of kv.type, aligned to 16 bytes.
  int64_t q_stride = 0;        // Elements from a token to the next, a multiple of 8.
  void* out = nullptr;         // [num_tokens, num_heads, head_dim] of kv.type, aligned to 16 bytes.
  int64_t out_stride = 0;      // Likewise.
  PagedKv16 kv;                // block_tokens 16 or more.
  DecodeAttentionShape shape;  // The plan's.
  float scale = 1;
  float softcap = 0;         // 0: none.
  int32_t split_tokens = 0;  // The plan's split_tokens when it is kFixed; 0: kBalanced.

  // True when items and block_tables were complete before the first of a chain of overlapped
  // launches began (uploaded by a copy, not by a kernel of the chain): the kernel then reads them
  // while the kernel before it still runs, which saves about a microsecond.
  bool metadata_is_early = false;
  const DecodeItem* items = nullptr;      // [>= grid_size], the plan's, aligned to 16 bytes.
  const int32_t* block_tables = nullptr;  // Ids of blocks; items say where a sequence begins.
  int32_t grid_size = 0;                  // As planned: DecodeAttentionGrid().
  // DecodeAttentionWorkspaceBytes(), aligned to 256. Its first DecodeAttentionCounterBytes() must
  // be zero before the first use; the kernel leaves them zero. Launches of one stream may share it.
  void* workspace = nullptr;
  int32_t partials_max = 0;  // As given to DecodeAttentionWorkspaceBytes().
  DecodeAttentionTuning tuning;
};

// Thread blocks of the launch on the current device: as many as are resident at once. 0: no device,
// or an unsupported shape.
int32_t DecodeAttentionGrid(const DecodeAttentionShape& shape,
                            const DecodeAttentionTuning& tuning = {});

// A counter for each unit that several thread blocks share: the border of a run cuts one unit, so
// there are fewer than thread blocks.
size_t DecodeAttentionCounterBytes(int32_t grid_size);
// For plans of at most so many partial results (DecodePartialsMax).
size_t DecodeAttentionWorkspaceBytes(const DecodeAttentionShape& shape, int32_t grid_size,
                                     int32_t partials_max);

// ERRORS: kUnsupported: a shape beyond the limits above; kInvalidArgument: null, misaligned, or
// inconsistent strides.
KernelStatus DecodeAttention(const DecodeAttentionParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_CUDA_H_
