// Causal attention over the paged KV pool with grouped query heads, one online softmax per (token,
// query head) [Milakov and Gimelshein, Online normalizer calculation for softmax, 2018]:
//   out = sum_j softmax_j(scale * q . k_j) v_j   over keys j <= position of the token.
//
// Keys are taken in tiles of kAttentionTileTokens at absolute multiples of that length, each score
// is one fused chain over head_dim, each output one fused chain over the keys of a tile. So the
// bits of a row depend neither on how its prompt was cut into chunks, nor on other rows, nor on the
// block size, nor on threads. Keys beyond a row's position are never read into it, whatever they
// hold.
//
// FLOPs: 4 * head_dim a (row, head, key). Bytes: K and V of the context once a work item, so a
// decode step (one token an item) is bound by memory.
// Thread rule: pure; work items may run at once.
#ifndef BATON_KERNELS_ATTENTION_ATTENTION_H_
#define BATON_KERNELS_ATTENTION_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/rope/paged_kv.h"

namespace baton::kernels {

inline constexpr int32_t kAttentionTileTokens = 16;
inline constexpr int32_t kAttentionHeadDimMax = 256;
// Query rows (tokens times heads of a group) that a work item aims at: what amortises the
// transposition of a key tile while scores and accumulators stay in the first-level cache.
inline constexpr int32_t kAttentionWorkRows = 24;

struct AttentionParams {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim]
  float* out = nullptr;      // [num_tokens, num_heads, head_dim]
  PagedKvLayer kv;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  float scale = 1;
};

// Query tokens [token_begin, token_begin + num_tokens) of a step, all of one sequence, at positions
// first_position...; for the query heads that share one KV head.
struct AttentionWork {
  int32_t token_begin = 0;
  int32_t num_tokens = 0;
  int32_t first_position = 0;
  int32_t kv_head = 0;
  const int32_t* block_table = nullptr;  // Of the sequence; covers all positions up to the last.
};

// Tokens of a work item for so many query heads a KV head.
constexpr int32_t AttentionWorkTokens(int32_t group) {
  return group >= kAttentionWorkRows ? 1 : kAttentionWorkRows / group;
}
// Floats of scratch of one thread, aligned to 64 bytes, for items of AttentionWorkTokens.
constexpr size_t AttentionScratchFloats(int32_t group, int32_t head_dim) {
  const auto rows = static_cast<size_t>(AttentionWorkTokens(group) * group);
  const auto padded = static_cast<size_t>((head_dim + 15) / 16 * 16);
  // Key tile, accumulators, scores, and maximum, sum and rescaling factor a row (padded to 8).
  return padded * kAttentionTileTokens + rows * padded + rows * kAttentionTileTokens +
         3 * ((rows + 15) / 16 * 16);
}

// Plain loops in double precision, softmax over all keys at once.
void AttentionRef(const AttentionParams& p, const AttentionWork& work);
// REQUIRES: head_dim <= kAttentionHeadDimMax; work.num_tokens <= AttentionWorkTokens(group).
void AttentionCpu(const AttentionParams& p, const AttentionWork& work, float* scratch);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ATTENTION_ATTENTION_H_
