// How a step of decode attention is cut over the GPU: pure arithmetic on the host, no CUDA. The
// result is uploaded with the step's metadata, once for all layers of one window.
//
// Work is counted in tiles of 64 keys at absolute multiples of 64. A unit is what shares one pass
// over K and V: one KV head of one sequence, and up to DecodeRowsPerItem rows (query tokens times
// heads of the group, row = token * group + head). The units, one after the other, form one line of
// tiles that is dealt out to the thread blocks in contiguous runs of equal length. A run's part of
// one unit is an item. So the grid is evenly loaded whatever the lengths are, and there are fewer
// items than units plus thread blocks.
//
// Steps with fewer units than thread blocks are cut into pieces of units instead, a run each, when
// that makes the longest run hardly longer: the end of an item is a matter of microseconds.
//
// The bits of a row depend on how the keys of its unit are cut into splits, each reduced on its
// own, then summed in ascending order.
//   kFixed: splits at absolute multiples of split_tokens, items only at those borders. A row's bits
//     depend on the row and its keys only: not on the batch, the grid or the query length.
//   kBalanced: an item is a split. Fewest partial results, evenest load.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PLAN_H_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/decode_attention/decode_attention_item.h"

namespace baton::kernels {

enum class DecodeSplit : uint8_t { kFixed, kBalanced };

struct DecodePlanOptions {
  DecodeAttentionShape shape;
  int32_t grid_size = 0;  // Thread blocks of the launch: DecodeAttentionGrid().
  DecodeSplit split = DecodeSplit::kBalanced;
  // kFixed: length of a split, a multiple of kDecodeTileTokens.
  int32_t split_tokens = 256;
  // Shortest run of a thread block in tiles; 0: the default. Shorter ones take as long.
  int32_t run_tiles_min = 0;
  // Capacity of the device buffers: PlanDecodeAttention fails beyond them.
  int32_t items_max = 0;
  int32_t partials_max = 0;
};

// The sequences of a step, as in the step's metadata on the device. Sequences with more rows than
// shape.query_length_max are left out (prefill attention does them); sequences of length 0 are
// padding: their rows of `out` become zero.
struct DecodePlanInput {
  absl::Span<const int32_t> query_starts;        // [num_sequences + 1]
  absl::Span<const int32_t> kv_lengths;          // [num_sequences], with this step's rows.
  absl::Span<const int32_t> block_table_starts;  // [num_sequences] or more, into block_tables.
};

struct DecodePlan {
  // Item i < grid_size begins the run of thread block i, the others follow by `next`.
  std::vector<DecodeItem> items;
  int32_t num_partials = 0;
  int32_t num_counters = 0;
  int64_t run_tiles_max = 0;  // Of the longest run: what the step takes, in tiles.

  // Between calls of PlanDecodeAttention: memory only.
  std::vector<int32_t> run_ends;    // Last item of each thread block.
  std::vector<int32_t> unit_items;  // Of the unit that is being cut.
};

// Writes `plan`, whose vector keeps its memory from step to step. False when the step does not fit
// into items_max or partials_max: a caller that sized them by the functions below, for limits that
// the step keeps, cannot see that.
bool PlanDecodeAttention(const DecodePlanOptions& options, const DecodePlanInput& input,
                         DecodePlan* plan);

// Capacities for any step of so many sequences (padding included) whose kv_lengths add up to
// kv_tokens_max at most.
int32_t DecodeItemsMax(const DecodePlanOptions& options, int32_t num_sequences);
int32_t DecodePartialsMax(const DecodePlanOptions& options, int32_t num_sequences,
                          int64_t kv_tokens_max);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_PLAN_H_
