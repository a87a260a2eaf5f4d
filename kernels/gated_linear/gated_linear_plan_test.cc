// Goal: every tile of the product belongs to exactly one unit, pairs are rarely half empty, and the
// cut that leaves the multiprocessors least to do is taken.
#include "kernels/gated_linear/gated_linear_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "kernels/launch/grouped_units.h"

namespace baton::kernels {
namespace {

constexpr int32_t kSms = 132;

TEST(GatedLinearPlan, GivesEveryTileToOneUnit) {
  for (const int32_t rows : {1, 128, 129, 300, 1100, 4096, 5000, 8192}) {
    for (const int32_t n : {8, 1000, 8192, 14336}) {
      const GatedLinearPlan plan = PlanGatedLinear({.rows = rows, .n = n, .k = 4096}, kSms);
      std::set<std::pair<int32_t, int32_t>> seen;
      for (int32_t unit = 0; unit < plan.num_row_units * plan.num_column_tiles; ++unit) {
        const GroupedUnit at =
            GroupedUnitAt(unit, plan.num_row_units, plan.num_column_tiles, plan.group_rows);
        ASSERT_TRUE(at.row >= 0 && at.row < plan.num_row_units);
        ASSERT_TRUE(at.column >= 0 && at.column < plan.num_column_tiles);
        ASSERT_TRUE(seen.emplace(at.row, at.column).second) << rows << " " << n << " " << unit;
      }
      EXPECT_GE(plan.num_row_units * plan.cluster * kGatedTileRows, rows);
      EXPECT_LT((plan.num_row_units - 1) * plan.cluster * kGatedTileRows, rows);
      EXPECT_GE(plan.num_column_tiles * plan.columns, 2 * n);
      EXPECT_LT((plan.num_column_tiles - 1) * plan.columns, 2 * n);
      EXPECT_EQ(plan.num_blocks % plan.cluster, 0);
      EXPECT_LE(plan.num_blocks, kSms);
    }
  }
}

TEST(GatedLinearPlan, LeavesFewMultiprocessorsIdle) {
  // 28672 rows of weights: 2 x 128 tiles of 224 are two for each block, 2 x 112 of 256 as well.
  EXPECT_EQ(PlanGatedLinear({.rows = 256, .n = 14336, .k = 4096}, kSms).columns, 224);
  // 32 x 128 and 32 x 112 tiles: 32 and 28 for a block, equal work; the wider one reads less.
  EXPECT_EQ(PlanGatedLinear({.rows = 4096, .n = 14336, .k = 4096}, kSms).columns, 256);
}

TEST(GatedLinearPlan, PairsTilesThatFillTheirPair) {
  EXPECT_EQ(PlanGatedLinear({.rows = 100, .n = 14336, .k = 4096}, kSms).cluster, 1);
  EXPECT_EQ(PlanGatedLinear({.rows = 256, .n = 14336, .k = 4096}, kSms).cluster, 1);
  EXPECT_EQ(PlanGatedLinear({.rows = 512, .n = 14336, .k = 4096}, kSms).cluster, 2);
  EXPECT_EQ(PlanGatedLinear({.rows = 600, .n = 14336, .k = 4096}, kSms).cluster, 1);
  EXPECT_EQ(PlanGatedLinear({.rows = 1100, .n = 14336, .k = 4096}, kSms).cluster, 2);
}

TEST(GatedLinearPlan, SupportsMultiplesOfEight) {
  EXPECT_TRUE(GatedLinearSupports({.rows = 1, .n = 8, .k = 8}));
  EXPECT_FALSE(GatedLinearSupports({.rows = 0, .n = 8, .k = 8}));
  EXPECT_FALSE(GatedLinearSupports({.rows = 1, .n = 12, .k = 8}));
  EXPECT_FALSE(GatedLinearSupports({.rows = 1, .n = 8, .k = 12}));
}

}  // namespace
}  // namespace baton::kernels
