// What the planner of decode attention hands to the kernel, and the shape that both agree on. Needs
// neither CUDA nor Abseil.
#ifndef BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_ITEM_H_
#define BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_ITEM_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

inline constexpr int32_t kDecodeTileTokens = 64;
inline constexpr int32_t kDecodeHeadDimMax = 256;
inline constexpr int32_t kDecodeQueryLengthMax = 8;

// What a captured launch bakes in, and a plan is made for. query_length_max chooses how many query
// rows the kernel computes: a step of one row a sequence should say 1, not 8.
struct DecodeAttentionShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;          // A multiple of 8, at most kDecodeHeadDimMax.
  int32_t query_length_max = 1;  // Rows of a sequence in a step, at most kDecodeQueryLengthMax.
  int32_t window = 0;            // A row sees the last `window` keys, its own included; 0: all.
};

// Head dimension as the kernel computes it, padded with zeros.
constexpr int32_t DecodePaddedHeadDim(int32_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

// Rows (query tokens times heads of a group) that share one pass over K and V: 8, 16 or 32. More
// rows than that are taken in turns.
constexpr int32_t DecodeRowsPerItem(const DecodeAttentionShape& shape) {
  const int32_t rows = shape.num_heads / shape.num_kv_heads * shape.query_length_max;
  const int32_t rows_max = DecodePaddedHeadDim(shape.head_dim) == 256 ? 16 : 32;
  return rows <= 8 ? 8 : rows <= 16 || rows_max == 16 ? 16 : 32;
}

// Part of a unit (decode_attention_plan.h), done by one thread block; three 16-byte loads.
struct alignas(16) DecodeItem {
  int32_t query_start = 0;     // First row of the sequence in q and out.
  int32_t first_position = 0;  // Position of that row.
  int32_t block_table = 0;     // Where the sequence's table begins in block_tables.
  int32_t next = -1;           // Next item of the thread block, or -1.

  int32_t tile_begin = 0;  // Keys [64 * tile_begin, 64 * tile_end) of the sequence, as far as rows
  int32_t tile_end = 0;    // of the unit see them.
  int32_t partial = 0;     // Partial result of this item's first split.
  int32_t unit_partial = 0;  // Of the unit's first split; the others follow it.

  int16_t kv_head = 0;     // kDecodeZeroRows: num_rows tokens of `out` become zero, all heads.
  int16_t num_rows = 0;    // Of the unit. 0: nothing to do.
  int16_t row_begin = 0;   // The unit's first row among the query_length * group of its KV head.
  int16_t num_items = 0;   // Of the unit; the last to finish adds up.
  int32_t num_splits = 0;  // Of the unit. 1: no partial result.
  int32_t counter = 0;     // Of the unit, among those of the step.
};
static_assert(sizeof(DecodeItem) == 48);

inline constexpr int16_t kDecodeZeroRows = -1;

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DECODE_ATTENTION_DECODE_ATTENTION_ITEM_H_
