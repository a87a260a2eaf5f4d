#include "kernels/embedding/embedding.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kGuard = -12345.0f;

TEST(Embed, ReadsRowsOfEveryStoredTypeAndPoisonsIdsOutsideTheTable) {
  constexpr int64_t kN = 19;
  constexpr int64_t kK = 5;
  std::vector<uint16_t> halves;  // 0, 1, 2, ... as float16 and bfloat16 agree on no bits.
  std::vector<uint16_t> brains;
  std::vector<float> floats;
  for (int i = 0; i < kN * kK; ++i) {
    floats.push_back(static_cast<float>(i));
    brains.push_back(static_cast<uint16_t>(0x3F80 + i));
    halves.push_back(static_cast<uint16_t>(0x3C00 + i));
  }
  const std::vector<int32_t> ids = {18, 0, -1, 16, 19, INT32_MAX, INT32_MIN, 15};
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    std::vector<float> packed(PackedWeightBytes(kN, kK, false, type) / 4);
    const void* rows = type == WeightType::kF32   ? static_cast<const void*>(floats.data())
                       : type == WeightType::kF16 ? halves.data()
                                                  : brains.data();
    PackLinearRows(rows, type, kN, kK, 0, false, 0, type, packed.data());
    std::vector<float> out(ids.size() * kK + 4, kGuard);
    Embed({.ids = ids.data(),
           .packed = packed.data(),
           .out = out.data(),
           .n = kN,
           .k = kK,
           .type = type},
          0, static_cast<int64_t>(ids.size()));
    for (size_t row = 0; row < ids.size(); ++row) {
      for (int64_t i = 0; i < kK; ++i) {
        const float actual = out[row * kK + static_cast<size_t>(i)];
        if (ids[row] < 0 || ids[row] >= kN) {
          EXPECT_TRUE(std::isnan(actual));
          continue;
        }
        const auto index = static_cast<float>(ids[row] * kK + i);
        const float expected = type == WeightType::kF32   ? index
                               : type == WeightType::kF16 ? 1 + index / 1024
                                                          : 1 + index / 128;
        EXPECT_EQ(actual, expected);
      }
    }
    for (size_t i = out.size() - 4; i < out.size(); ++i) EXPECT_EQ(out[i], kGuard);
  }
}

TEST(GatherRows, CopiesTheNamedRowsOnly) {
  const std::vector<float> in = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int32_t> rows = {2, 0, 2};
  std::vector<float> out(10, kGuard);
  GatherRows(in.data(), rows.data(), 3, 1, 3, out.data());
  EXPECT_EQ(out, (std::vector<float>{kGuard, kGuard, kGuard, 0, 1, 2, 6, 7, 8, kGuard}));
}

}  // namespace
}  // namespace baton::kernels
