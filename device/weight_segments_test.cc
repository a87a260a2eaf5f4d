// Conversion of weights, element by element against exact values.
#include "device/weight_segments.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

template <typename T>
std::vector<T> Convert(const std::vector<float>& values, DType to) {
  const WeightSegment segment{
      .data = {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)},
      .dtype = DType::kF32,
      .rows = 1,
      .cols = static_cast<int64_t>(values.size())};
  std::vector<T> out(values.size());
  ConvertWeightRow(segment, 0, to, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

TEST(ConvertWeightRow, RoundsToNearestEven) {
  // 1 + 2^-8 lies between two bf16 numbers; 1 + 3 * 2^-8 too: both go to the even one.
  EXPECT_EQ(Convert<uint16_t>({1.0f, 1.00390625f, 1.01171875f, -2.5f}, DType::kBF16),
            (std::vector<uint16_t>{0x3F80, 0x3F80, 0x3F82, 0xC020}));
  EXPECT_EQ(Convert<uint16_t>({1.0f, 65504.0f, 1e6f, 5.9604644775390625e-8f}, DType::kF16),
            (std::vector<uint16_t>{0x3C00, 0x7BFF, 0x7C00, 0x0001}));
}

TEST(ConvertWeightRow, KeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_GT(Convert<uint16_t>({nan}, DType::kBF16)[0] & 0x7F, 0);
  EXPECT_GT(Convert<uint16_t>({nan}, DType::kF16)[0] & 0x3FF, 0);
}

TEST(ConvertWeightRow, TakesRowsAtAnyAlignment) {
  const std::vector<uint16_t> halves = {0x3C00, 0x4000, 0x4200, 0x4400};
  std::vector<std::byte> bytes(1 + halves.size() * 2);
  std::memcpy(bytes.data() + 1, halves.data(), halves.size() * 2);
  const WeightSegment segment{
      .data = absl::MakeSpan(bytes).subspan(1), .dtype = DType::kF16, .rows = 2, .cols = 2};
  float out[2] = {};
  ConvertWeightRow(segment, 1, DType::kF32, reinterpret_cast<std::byte*>(out));
  EXPECT_EQ(out[0], 3.0f);
  EXPECT_EQ(out[1], 4.0f);
}

}  // namespace
}  // namespace baton
