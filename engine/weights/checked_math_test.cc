// The borders where products and sums of 64-bit sizes would wrap (FIL-02).
#include "engine/weights/checked_math.h"

#include <limits>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr int64_t kIntMax = std::numeric_limits<int64_t>::max();

TEST(CheckedMath, AddsUpToTheLargestValueAndNoFurther) {
  EXPECT_EQ(CheckedAdd(0, 0), 0u);
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 0), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax, kMax), std::nullopt);
}

TEST(CheckedMath, MultipliesUpToTheLargestValueAndNoFurther) {
  EXPECT_EQ(CheckedMultiply(kMax, 1), kMax);
  EXPECT_EQ(CheckedMultiply(kMax, 0), 0u);
  EXPECT_EQ(CheckedMultiply(uint64_t{1} << 32, (uint64_t{1} << 32) - 1), 0xFFFFFFFF00000000u);
  EXPECT_EQ(CheckedMultiply(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);  // wraps to 0
  EXPECT_EQ(CheckedMultiply(uint64_t{1} << 62, 4), std::nullopt);                  // wraps to 0
  EXPECT_EQ(CheckedMultiply((uint64_t{1} << 62) + 1, 4), std::nullopt);            // wraps to 4
  EXPECT_EQ(CheckedMultiply(uint64_t{1} << 62, 3), uint64_t{3} << 62);
}

TEST(CheckedMath, AlignsUpOnlyToPowersOfTwo) {
  EXPECT_EQ(CheckedAlignUp(0, 32), 0u);
  EXPECT_EQ(CheckedAlignUp(1, 32), 32u);
  EXPECT_EQ(CheckedAlignUp(32, 32), 32u);
  EXPECT_EQ(CheckedAlignUp(33, 1), 33u);
  EXPECT_EQ(CheckedAlignUp(kMax - 31, 32), kMax - 31);
  EXPECT_EQ(CheckedAlignUp(kMax - 30, 32), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(kMax, 2), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(1, 0), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(1, 3), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(5, uint64_t{1} << 31), uint64_t{1} << 31);
}

TEST(CheckedMath, CountsElementsOfShapes) {
  EXPECT_EQ(CheckedElements({}), 1u);
  EXPECT_EQ(CheckedElements({7}), 7u);
  EXPECT_EQ(CheckedElements({3, 0, 5}), 0u);
  EXPECT_EQ(CheckedElements({kIntMax, 2}), kMax - 1);
  EXPECT_EQ(CheckedElements({int64_t{1} << 32, int64_t{1} << 31}), uint64_t{1} << 63);
}

TEST(CheckedMath, RefusesShapesWhoseProductWrapsOrIsNegative) {
  EXPECT_EQ(CheckedElements({kIntMax, 3}), std::nullopt);
  EXPECT_EQ(CheckedElements({int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(CheckedElements({int64_t{1} << 62, 4}), std::nullopt);
  EXPECT_EQ(CheckedElements({(int64_t{1} << 42) + 1, int64_t{1} << 22}), std::nullopt);
  EXPECT_EQ(CheckedElements({-1}), std::nullopt);
  EXPECT_EQ(CheckedElements({0, -1}), std::nullopt);
}

TEST(CheckedMath, ZeroDimensionDoesNotHideAWrap) {
  EXPECT_EQ(CheckedElements({int64_t{1} << 33, int64_t{1} << 33, 0}), std::nullopt);
  EXPECT_EQ(CheckedElements({0, int64_t{1} << 33, int64_t{1} << 33}), std::nullopt);
}

}  // namespace
}  // namespace baton
