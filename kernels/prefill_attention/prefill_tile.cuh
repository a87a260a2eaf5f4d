// What both kernels share: where a tile of query rows lies, and the arithmetic on scores.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_TILE_CUH_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_TILE_CUH_

#include <cstdint>

#include "kernels/launch/launch.cuh"
#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/ptx/ex2.cuh"

namespace baton::kernels {

constexpr float kLog2E = 1.4426950408889634f;

struct PrefillTile {
  int32_t q_row;           // Of the tile's first token, in q and out.
  int32_t num_tokens;      // 0: nothing to do.
  int32_t first_position;  // Of the first token.
  int32_t kv_length;
  int32_t table;  // First entry of the sequence's block table.
  int32_t head;   // First query head.
  int32_t heads;  // Query heads folded into the rows.
  int32_t kv_head;

  __device__ int32_t last_position() const { return first_position + num_tokens - 1; }
  // No row sees a key before.
  __device__ int32_t FirstKey(int32_t window) const {
    return window > 0 ? max(0, first_position - window + 1) : 0;
  }
};

__device__ __forceinline__ PrefillTile LoadTile(const PrefillAttentionParams& p,
                                                const PrefillWork& work, int32_t tile_rows) {
  PrefillTile tile;
  const int32_t begin = p.query_starts[work.sequence];
  const int32_t length = p.query_starts[work.sequence + 1] - begin;
  tile.kv_length = p.kv_lengths[work.sequence];
  tile.table = p.block_table_starts[work.sequence];
  tile.q_row = begin + work.token_begin;
  tile.num_tokens =
      tile.kv_length > 0 ? max(0, min(tile_rows / work.heads, length - work.token_begin)) : 0;
  tile.first_position = tile.kv_length - length + work.token_begin;
  tile.head = work.head;
  tile.heads = work.heads;
  tile.kv_head = work.head / (p.num_heads / p.kv.num_kv_heads);
  return tile;
}

// softcap * tanh(score * scale / softcap), given `inner` = 2 * log2(e) * scale / softcap. By way of
// exp2 and division: the error is absolute, about 1e-7 of softcap, where tanh.approx errs by 5e-4.
__device__ __forceinline__ float SoftcappedScore(float score, float inner, float softcap) {
  // Spelt out, so that every copy of this gives the same bits.
  return softcap - __fdividef(2 * softcap, 1 + ptx::Ex2(__fmul_rn(score, inner)));
}

// Launchers' checks of what both kernels need.
inline KernelStatus CheckPrefillParams(const PrefillAttentionParams& p, int32_t multiple) {
  const PagedKv16& kv = p.kv;
  if (p.q == nullptr || p.out == nullptr || kv.base == nullptr || p.query_starts == nullptr ||
      p.kv_lengths == nullptr || p.block_table_starts == nullptr || p.block_tables == nullptr ||
      p.work == nullptr || p.num_work == nullptr || p.num_multiprocessors <= 0) {
    return KernelStatus::kInvalidArgument;
  }
  if (kv.num_kv_heads <= 0 || p.num_heads <= 0 || p.num_heads % kv.num_kv_heads != 0 ||
      p.window < 0 || !(p.softcap >= 0) || p.q_stride % multiple != 0 ||
      p.out_stride % multiple != 0) {
    return KernelStatus::kInvalidArgument;
  }
  const auto misaligned = static_cast<uintptr_t>(multiple) * 2 - 1;
  const auto bits = reinterpret_cast<uintptr_t>(p.q) | reinterpret_cast<uintptr_t>(p.out) |
                    reinterpret_cast<uintptr_t>(kv.base);
  return (bits & misaligned) != 0 ? KernelStatus::kInvalidArgument : KernelStatus::kOk;
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_TILE_CUH_
