// RandomFillCuda writes what its header defines, bit for bit, and nothing else.
#include "kernels/random_fill/random_fill_cuda.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/launch/cuda_testing.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::FloatsFromHalves;
using testing::HalfFromFloat;
using testing::TestStream;

TEST(RandomFillCuda, WritesTheDefinedValuesInSmallShapes) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const int64_t count : {0, 1, 7, 8, 9, 4096, 100003}) {
      const TestStream stream;
      const DeviceArray<uint16_t> out(static_cast<size_t>(count));
      ASSERT_EQ(RandomFillCuda({.out = out.data(),
                                .count = count,
                                .scale = 0.02f,
                                .seed = 0x123456789ABCDEFu,
                                .type = type},
                               stream.get()),
                KernelStatus::kOk);
      stream.Synchronize();
      const std::vector<uint16_t> actual = out.ToHost();
      for (int64_t i = 0; i < count; ++i) {
        const RandomFillBlock block =
            RandomFillValues(static_cast<uint64_t>(i) / 4, 0x123456789ABCDEFu, 0.02f);
        ASSERT_EQ(actual[static_cast<size_t>(i)], HalfFromFloat(type, block.value[i % 4]))
            << "element " << i << " of " << count;
      }
    }
  }
}

TEST(RandomFillCuda, HasTheWantedDeviation) {
  double sum = 0;
  double squares = 0;
  constexpr int kBlocks = 100000;
  for (uint64_t b = 0; b < kBlocks; ++b) {
    for (const float v : RandomFillValues(b, 5, 2).value) {
      sum += v;
      squares += static_cast<double>(v) * v;
    }
  }
  EXPECT_NEAR(sum / (4 * kBlocks), 0, 0.02);
  EXPECT_NEAR(std::sqrt(squares / (4 * kBlocks)), 2, 0.02);
}

}  // namespace
}  // namespace baton::kernels
