// How a gated product is cut into tiles: pure arithmetic, no CUDA.
//
// A tile is 128 token rows by `columns` rows of the interleaved weights (columns / 2 outputs). A
// unit is what a cluster of blocks makes at a time: one tile, or two tiles of consecutive rows that
// share their weights. Units are dealt to the clusters in turns, back and forth, in the order of
// launch/grouped_units.h: rows are row units, columns are column tiles.
#ifndef BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_PLAN_H_
#define BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_PLAN_H_

#include <cstdint>

namespace baton::kernels {

inline constexpr int32_t kGatedTileRows = 128;

struct GatedLinearShape {
  int32_t rows = 0;
  int32_t n = 0;  // Outputs of a row; the weights have twice as many rows.
  int32_t k = 0;
};

struct GatedLinearPlan {
  int32_t columns = 0;        // 256 or 224.
  int32_t cluster = 0;        // Blocks of a cluster, 1 or 2.
  int32_t num_row_units = 0;  // Along the token rows.
  int32_t num_column_tiles = 0;
  int32_t group_rows = 0;  // Row units.
  int32_t num_blocks = 0;
};

// REQUIRES: GatedLinearSupports(shape), num_sms > 1.
GatedLinearPlan PlanGatedLinear(const GatedLinearShape& shape, int32_t num_sms);

// Rows from 1, n and k multiples of 8.
bool GatedLinearSupports(const GatedLinearShape& shape);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_GATED_LINEAR_GATED_LINEAR_PLAN_H_
