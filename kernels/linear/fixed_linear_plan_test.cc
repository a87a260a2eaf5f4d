// Goal: every tile of the product belongs to exactly one unit, blocks fit the device, and the tile
// that leaves the multiprocessors least to do is taken.
#include "kernels/linear/fixed_linear_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>

#include "kernels/launch/grouped_units.h"
#include "kernels/linear/skinny_linear_plan.h"

namespace baton::kernels {
namespace {

constexpr int32_t kSms = 132;

TEST(FixedLinearPlan, GivesEveryTileToOneUnit) {
  for (const int32_t rows : {1, 65, 128, 129, 700, 2048, 8192}) {
    for (const FixedLinearShape& shape : {FixedLinearShape{.rows = rows, .n = 1, .k = 8},
                                          FixedLinearShape{.rows = rows, .n = 4096, .k = 4096},
                                          FixedLinearShape{rows, 1000, 512, true}}) {
      const FixedLinearPlan plan = PlanFixedLinear(shape, kSms);
      std::set<std::pair<int32_t, int32_t>> seen;
      for (int32_t unit = 0; unit < plan.num_token_tiles * plan.num_weight_units; ++unit) {
        const GroupedUnit at =
            GroupedUnitAt(unit, plan.num_token_tiles, plan.num_weight_units, plan.group);
        ASSERT_TRUE(at.row >= 0 && at.row < plan.num_token_tiles);
        ASSERT_TRUE(at.column >= 0 && at.column < plan.num_weight_units);
        ASSERT_TRUE(seen.emplace(at.row, at.column).second) << rows << " " << unit;
      }
      const int32_t w_rows = shape.n * (shape.gated ? 2 : 1);
      EXPECT_GE(plan.num_token_tiles * plan.tokens, rows);
      EXPECT_LT((plan.num_token_tiles - 1) * plan.tokens, rows);
      EXPECT_GE(plan.num_weight_units * plan.cluster * kSkinnyTileRows, w_rows);
      EXPECT_LT((plan.num_weight_units - 1) * plan.cluster * kSkinnyTileRows, w_rows);
      EXPECT_EQ(plan.num_blocks % plan.cluster, 0);
      EXPECT_LE(plan.num_blocks, kSms);
    }
  }
}

TEST(FixedLinearPlan, LeavesFewMultiprocessorsIdle) {
  // 11 x 24 pairs of tiles are four for each pair of blocks.
  EXPECT_EQ(PlanFixedLinear({.rows = 2048, .n = 6144, .k = 4096}, kSms).tokens, 192);
  // 11 x 16 would be three for most of them, 16 x 16 are four of two thirds the size.
  EXPECT_EQ(PlanFixedLinear({.rows = 2048, .n = 4096, .k = 4096}, kSms).tokens, 128);
  // 2 x 32 tiles would leave half of the blocks without any.
  EXPECT_EQ(PlanFixedLinear({.rows = 256, .n = 4096, .k = 4096}, kSms).tokens, 64);
}

TEST(FixedLinearPlan, LeavesProductsToTheSkinnyKernelWhereWeightsAreMost) {
  EXPECT_TRUE(SkinnyLinearIsFaster({.rows = 65, .n = 14336, .k = 4096, .gated = true}, kSms));
  EXPECT_TRUE(SkinnyLinearIsFaster({.rows = 128, .n = 4096, .k = 14336}, kSms));
  EXPECT_TRUE(SkinnyLinearIsFaster({.rows = 256, .n = 14336, .k = 4096, .gated = true}, kSms));
  EXPECT_FALSE(SkinnyLinearIsFaster({.rows = 256, .n = 6144, .k = 4096}, kSms));
  EXPECT_FALSE(SkinnyLinearIsFaster({.rows = 257, .n = 4096, .k = 14336}, kSms));
}

TEST(FixedLinearPlan, SupportsWhatTheSkinnyKernelDoesOfAnyNumberOfRows) {
  EXPECT_TRUE(FixedLinearSupports({.rows = 1000, .n = 1, .k = 8}));
  EXPECT_FALSE(FixedLinearSupports({.rows = 0, .n = 1, .k = 8}));
  EXPECT_FALSE(FixedLinearSupports({.rows = 1, .n = 1, .k = 12}));
  EXPECT_FALSE(FixedLinearSupports({.rows = 1, .n = 12, .k = 8, .gated = true}));
}

}  // namespace
}  // namespace baton::kernels
