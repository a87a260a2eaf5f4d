// Goal: Swiglu equals its formula in double for odd row counts, strides and both types.
#include "kernels/linear/swiglu_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/launch/cuda_testing.h"

namespace baton::kernels::testing {
namespace {

void CheckSwiglu(HalfType type, int32_t rows, int32_t n, int64_t x_pad, int64_t y_pad) {
  const int64_t x_stride = 2 * n + x_pad;
  const int64_t y_stride = n + y_pad;
  const std::vector<float> x =
      RandomHalves(type, static_cast<size_t>(rows * x_stride), 2.0f, static_cast<uint64_t>(n));
  const DeviceArray<uint16_t> device_x(HalvesFromFloats(type, x));
  const DeviceArray<uint16_t> device_y(static_cast<size_t>(rows * y_stride));
  TestStream stream;
  ASSERT_EQ(Swiglu({.x = device_x.data(),
                    .x_stride = x_stride,
                    .y = device_y.data(),
                    .y_stride = y_stride,
                    .rows = rows,
                    .n = n,
                    .type = type},
                   stream.get(), LaunchOrder::kAfter),
            KernelStatus::kOk);
  stream.Synchronize();
  const std::vector<float> y = FloatsFromHalves(type, device_y.ToHost());
  std::vector<float> want;
  std::vector<float> got;
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < y_stride; ++i) {
      if (i >= n) {
        ASSERT_TRUE(std::isnan(y[static_cast<size_t>(m * y_stride + i)]));
        continue;
      }
      const auto at = static_cast<size_t>(m * x_stride + i / 8 * 16 + i % 8);
      const double gate = x[at];
      want.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * x[at + 8]));
      got.push_back(y[static_cast<size_t>(m * y_stride + i)]);
    }
  }
  EXPECT_LT(RelativeError(want, got), HalfTolerance(type)) << rows << " x " << n;
}

TEST(SwigluCuda, EqualsTheFormula) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    CheckSwiglu(type, 1, 8, 0, 0);
    CheckSwiglu(type, 3, 40, 8, 16);
    CheckSwiglu(type, 257, 1024, 0, 8);
    CheckSwiglu(type, 1000, 5632, 0, 0);
  }
}

TEST(SwigluCuda, RefusesWhatItCannotDo) {
  SKIP_WITHOUT_GPU();
  const DeviceArray<uint16_t> x(256);
  const DeviceArray<uint16_t> y(128);
  SwigluParams p = {
      .x = x.data(), .x_stride = 32, .y = y.data(), .y_stride = 16, .rows = 1, .n = 12};
  EXPECT_EQ(Swiglu(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.n = 16;
  p.y = nullptr;
  EXPECT_EQ(Swiglu(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p.rows = 0;
  EXPECT_EQ(Swiglu(p, nullptr, LaunchOrder::kAfter), KernelStatus::kOk);
}

}  // namespace
}  // namespace baton::kernels::testing
