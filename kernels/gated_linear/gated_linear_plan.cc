#include "kernels/gated_linear/gated_linear_plan.h"

#include <algorithm>

namespace baton::kernels {
namespace {

constexpr int32_t kGroupRows = 8;  // Row units.

constexpr int32_t DivideUp(int32_t a, int32_t b) { return (a + b - 1) / b; }

}  // namespace

bool GatedLinearSupports(const GatedLinearShape& shape) {
  return shape.rows > 0 && shape.n > 0 && shape.n % 8 == 0 && shape.k > 0 && shape.k % 8 == 0;
}

GatedLinearPlan PlanGatedLinear(const GatedLinearShape& shape, int32_t num_sms) {
  GatedLinearPlan plan;
  const int32_t row_tiles = DivideUp(shape.rows, kGatedTileRows);
  // Pairs pay where there are several, and few with an empty tile.
  plan.cluster = (row_tiles >= 4 && row_tiles % 2 == 0) || row_tiles > 8 ? 2 : 1;
  plan.num_row_units = DivideUp(row_tiles, plan.cluster);
  plan.group_rows = std::min(plan.num_row_units, kGroupRows);
  const int32_t clusters = num_sms / plan.cluster;
  int64_t best = 0;
  for (const int32_t columns : {256, 224}) {
    const int32_t column_tiles = DivideUp(2 * shape.n, columns);
    const int64_t units = int64_t{column_tiles} * plan.num_row_units;
    // Of the cluster that has most.
    const int64_t work = (units + clusters - 1) / clusters * columns;
    if (best != 0 && work >= best) continue;
    best = work;
    plan.columns = columns;
    plan.num_column_tiles = column_tiles;
    plan.num_blocks = static_cast<int32_t>(std::min<int64_t>(units, clusters)) * plan.cluster;
  }
  return plan;
}

}  // namespace baton::kernels
