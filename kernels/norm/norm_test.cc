// AddNormCpu against the double-precision reference, with outputs poisoned and guarded, and exact
// independence of a row from the others.
#include "kernels/norm/norm.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0f;
constexpr size_t kGuardFloats = 16;

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

struct Case {
  int64_t rows;
  int64_t cols;
  bool with_delta;
};

struct Result {
  std::vector<float> residual;
  std::vector<float> out;
};

template <typename Kernel>
Result RunKernel(const Case& c, const std::vector<float>& delta, const std::vector<float>& residual,
                 const std::vector<float>& gamma, Kernel kernel) {
  const auto n = static_cast<size_t>(c.rows * c.cols);
  Result r{residual, std::vector<float>(n + kGuardFloats, kNaN)};
  r.residual.resize(n + kGuardFloats, kGuard);
  std::fill(r.out.begin() + static_cast<ptrdiff_t>(n), r.out.end(), kGuard);
  const AddNormParams p{.delta = c.with_delta ? delta.data() : nullptr,
                        .residual = r.residual.data(),
                        .gamma = gamma.data(),
                        .out = r.out.data(),
                        .cols = c.cols,
                        .epsilon = 1e-5f};
  kernel(p, 0, c.rows);
  for (size_t i = n; i < n + kGuardFloats; ++i) {
    EXPECT_EQ(r.residual[i], kGuard);
    EXPECT_EQ(r.out[i], kGuard);
  }
  r.residual.resize(n);
  r.out.resize(n);
  return r;
}

TEST(AddNorm, EqualsTheReferenceForOddAndEvenShapes) {
  for (const int64_t rows : {0, 1, 3}) {
    for (const int64_t cols : {1, 7, 8, 9, 31, 32, 64, 67, 512, 4096}) {
      for (const bool with_delta : {false, true}) {
        const Case c{rows, cols, with_delta};
        const auto n = static_cast<size_t>(rows * cols);
        const auto delta = RandomFloats(n, 1);
        const auto residual = RandomFloats(n, 2);
        const auto gamma = RandomFloats(static_cast<size_t>(cols), 3);
        const Result expected = RunKernel(c, delta, residual, gamma, AddNormRef);
        const Result actual = RunKernel(c, delta, residual, gamma, AddNormCpu);
        EXPECT_EQ(actual.residual, expected.residual);
        for (size_t i = 0; i < n; ++i) {
          EXPECT_NEAR(actual.out[i], expected.out[i], 2e-6 * std::abs(expected.out[i]) + 1e-7)
              << rows << "x" << cols << " at " << i;
        }
      }
    }
  }
}

TEST(AddNorm, BitsOfARowDoNotDependOnOtherRowsNorOnNaNInThem) {
  const Case c{5, 100, true};
  const auto delta = RandomFloats(500, 4);
  auto residual = RandomFloats(500, 5);
  const auto gamma = RandomFloats(100, 6);
  const Result all = RunKernel(c, delta, residual, gamma, AddNormCpu);
  residual[2 * 100 + 50] = kNaN;
  const Result poisoned = RunKernel(c, delta, residual, gamma, AddNormCpu);
  for (size_t i = 0; i < 500; ++i) {
    if (i / 100 == 2) {
      EXPECT_TRUE(std::isnan(poisoned.out[i]));
    } else {
      EXPECT_EQ(poisoned.out[i], all.out[i]);
    }
  }
  for (size_t row = 0; row < 5; ++row) {
    const auto first = static_cast<ptrdiff_t>(row * 100);
    const Result alone =
        RunKernel({1, 100, true}, {delta.begin() + first, delta.begin() + first + 100},
                  {residual.begin() + first, residual.begin() + first + 100}, gamma, AddNormCpu);
    if (row == 2) continue;
    for (size_t col = 0; col < 100; ++col) EXPECT_EQ(alone.out[col], all.out[row * 100 + col]);
  }
}

}  // namespace
}  // namespace baton::kernels
