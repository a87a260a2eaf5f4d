// Goal: marks end with the last layer, lie closer towards it, and are few, for any number of
// layers.
#include "device/cuda/kv_mark_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace baton {
namespace {

using testing::ElementsAre;

TEST(KvMarkLayers, LieCloserTowardsTheEnd) {
  EXPECT_THAT(KvMarkLayers(1), ElementsAre(1));
  EXPECT_THAT(KvMarkLayers(2), ElementsAre(1, 2));
  EXPECT_THAT(KvMarkLayers(16), ElementsAre(2, 4, 8, 12, 14, 15, 16));
  EXPECT_THAT(KvMarkLayers(32), ElementsAre(4, 8, 16, 24, 28, 30, 31, 32));
  EXPECT_THAT(KvMarkLayers(80), ElementsAre(10, 20, 40, 60, 70, 75, 79, 80));
}

TEST(KvMarkLayers, AreAscendingAndFewWhateverTheModel) {
  for (int32_t layers = 1; layers <= 300; ++layers) {
    const std::vector<int32_t> marks = KvMarkLayers(layers);
    EXPECT_LE(marks.size(), static_cast<size_t>(kKvMarksMax)) << layers;
    EXPECT_GE(marks.front(), 1) << layers;
    EXPECT_EQ(marks.back(), layers);
    EXPECT_EQ(std::adjacent_find(marks.begin(), marks.end(), std::greater_equal<>()), marks.end())
        << layers;
    if (layers > 1) {
      EXPECT_EQ(marks[marks.size() - 2], layers - 1);
    }
  }
}

}  // namespace
}  // namespace baton
