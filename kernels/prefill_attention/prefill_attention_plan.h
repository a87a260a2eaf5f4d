// The work list of a prefill attention launch: pure, on the host, once a step; all layers of equal
// shape and window use it.
//
// Tiles are listed longest first, since a tile's cost grows with its position and the kernels hand
// them out nearly in this order: the short ones level the end. They are grouped in sections whose
// keys and values fit in the second-level cache together, because many tiles of a section run at
// once and read the same keys.
// Query heads that share a KV head are folded into the rows of one tile where that means fewer
// key tiles in all: always when chunks are short, and mostly when they are long too, because a
// tile that spans fewer tokens wastes less on the diagonal.
// Thread rule: pure.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_PLAN_H_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"

namespace baton::kernels {

struct PrefillPlanShape {
  PrefillKernel kernel = PrefillKernel::kSm90;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;  // 0: none.
};

// Rows of a tile and keys of a step over the context, as the kernels are compiled.
struct PrefillTiling {
  int32_t rows = 0;
  int32_t keys = 0;
};
PrefillTiling PrefillTilingOf(PrefillKernel kernel, int32_t head_dim);

// Appends the tiles of all sequences with query_lengths[i] > 0 to `work`.
// REQUIRES: num_heads a multiple of num_kv_heads; query_lengths[i] <= kv_lengths[i].
void PlanPrefillAttention(const PrefillPlanShape& shape, absl::Span<const int32_t> query_lengths,
                          absl::Span<const int32_t> kv_lengths, std::vector<PrefillWork>* work);

// No plan for so many tokens of so many sequences is longer.
int64_t PrefillWorkMax(const PrefillPlanShape& shape, int64_t num_tokens_max,
                       int64_t num_sequences_max);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_PLAN_H_
