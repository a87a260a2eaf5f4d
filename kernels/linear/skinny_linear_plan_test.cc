#include "kernels/linear/skinny_linear_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace baton::kernels {
namespace {

constexpr int32_t kSms = 132;

const std::vector<SkinnyLinearShape>& Shapes() {
  static const std::vector<SkinnyLinearShape> shapes = {
      {.rows = 1, .n = 1, .k = 8},
      {.rows = 7, .n = 64, .k = 64},
      {.rows = 64, .n = 6144, .k = 4096},
      {.rows = 64, .n = 4096, .k = 4096},
      {.rows = 33, .n = 14336, .k = 4096, .gated = true},
      {.rows = 64, .n = 4096, .k = 14336},
      {.rows = 8, .n = 128256, .k = 4096},
      {.rows = 17, .n = 1001, .k = 2056},
  };
  return shapes;
}

SkinnyLinearPlan Plan(const SkinnyLinearShape& shape) { return PlanSkinnyLinear(shape, {}, kSms); }

TEST(SkinnyLinearPlan, RefusesWhatTheKernelCannotDo) {
  EXPECT_TRUE(SkinnyLinearSupports({.rows = 256, .n = 1, .k = 8}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 0, .n = 1, .k = 8}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 257, .n = 1, .k = 8}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 1, .n = 0, .k = 8}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 1, .n = 1, .k = 12}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 1, .n = 1, .k = 0}));
  EXPECT_FALSE(SkinnyLinearSupports({.rows = 1, .n = 12, .k = 8, .gated = true}));
}

TEST(SkinnyLinearPlan, EveryChunkHasOneOwnerAndRunsDifferByAtMostOne) {
  for (const SkinnyLinearShape& shape : Shapes()) {
    const SkinnyLinearPlan plan = Plan(shape);
    const int64_t chunks = int64_t{plan.num_tiles} * plan.chunks_per_tile;
    int64_t next = 0;
    for (int32_t block = 0; block < plan.num_blocks; ++block) {
      const int64_t begin = SkinnyRunBegin(chunks, plan.num_blocks, block);
      const int64_t end = SkinnyRunBegin(chunks, plan.num_blocks, block + 1);
      ASSERT_EQ(begin, next);
      ASSERT_GE(end - begin, chunks / plan.num_blocks);
      ASSERT_LE(end - begin, chunks / plan.num_blocks + 1);
      ASSERT_EQ(SkinnyRunOwner(chunks, plan.num_blocks, begin), block);
      ASSERT_EQ(SkinnyRunOwner(chunks, plan.num_blocks, end - 1), block);
      next = end;
    }
    EXPECT_EQ(next, chunks);
  }
}

TEST(SkinnyLinearPlan, TheCutDoesNotDependOnTheNumberOfRows) {
  for (SkinnyLinearShape shape : Shapes()) {
    shape.rows = 1;
    const SkinnyLinearPlan one = Plan(shape);
    for (const int32_t rows : {2, 8, 9, 16, 31, 33, 64, 65, 128, 256}) {
      shape.rows = rows;
      const SkinnyLinearPlan many = Plan(shape);
      EXPECT_EQ(one.chunks_per_tile, many.chunks_per_tile);
      EXPECT_EQ(one.num_blocks, many.num_blocks);
      EXPECT_GE(many.token_tile, rows);
    }
  }
}

TEST(SkinnyLinearPlan, SharedMemoryHoldsAtLeastFourStages) {
  for (SkinnyLinearShape shape : Shapes()) {
    for (const int32_t rows : {1, 9, 17, 64, 65, 256}) {
      shape.rows = rows;
      const SkinnyLinearPlan plan = Plan(shape);
      EXPECT_GE(plan.num_stages, 4);
      EXPECT_LE(plan.shared_bytes, size_t{226} * 1024);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
