// Vector forms equal the scalar forms bit for bit, and both are close to double precision.
#include "kernels/vector_math/vector_math.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/vector_math/vector_math_cpu.h"

namespace baton::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Arguments(float low, float high, size_t n) {
  std::mt19937 rng(3);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> x(n);
  for (float& v : x) v = uniform(rng);
  return x;
}

void ExpectSameBits(float a, float b, float x) {
  EXPECT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)) << "at " << x;
}

TEST(VectorMath, ExpIsAccurateAndTheSameInBothForms) {
  std::vector<float> x = Arguments(-87, 88, 100003);
  x.insert(x.end(), {0.0f, -0.0f, kExpArgumentMin, kExpArgumentMax, 1e-30f});
  std::vector<float> y(x.size());
  ExpArray(x.data(), x.size(), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ExpectSameBits(y[i], ExpF32(x[i]), x[i]);
    EXPECT_NEAR(y[i] / std::exp(static_cast<double>(x[i])), 1.0, 2.5e-7) << x[i];
  }
  EXPECT_EQ(ExpF32(0.0f), 1.0f);
}

TEST(VectorMath, ExpTreatsTheEndsOfTheRange) {
  const std::vector<float> x = {-kInfinity, -1e30f, -88.0f, 1000.0f, kInfinity, kNaN};
  std::vector<float> y(x.size());
  ExpArray(x.data(), x.size(), y.data());
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isfinite(y[3]));
  EXPECT_EQ(y[3], y[4]);
  EXPECT_TRUE(std::isnan(y[5]));
  for (size_t i = 0; i + 1 < x.size(); ++i) ExpectSameBits(y[i], ExpF32(x[i]), x[i]);
  EXPECT_TRUE(std::isnan(ExpF32(kNaN)));
}

TEST(VectorMath, LogIsAccurateAndTheSameInBothForms) {
  std::vector<float> x = Arguments(1e-7f, 1.0f, 50000);
  const std::vector<float> large = Arguments(1.0f, 1e6f, 50001);
  x.insert(x.end(), large.begin(), large.end());
  x.insert(x.end(), {1.0f, 0.5f, FLT_MIN, FLT_MAX, 2.98023224e-8f, 0.99999997f});
  std::vector<float> y(x.size());
  LogArray(x.data(), x.size(), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ExpectSameBits(y[i], LogF32(x[i]), x[i]);
    const double exact = std::log(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i], exact, 2.5e-7 * std::abs(exact) + 1e-9) << x[i];
  }
  EXPECT_EQ(LogF32(1.0f), 0.0f);
}

TEST(VectorMath, SiluIsTheSameInBothFormsAndFiniteForLargeArguments) {
  std::vector<float> x = Arguments(-100, 100, 1001);
  x.insert(x.end(), {0.0f, -3e38f, 3e38f});
  std::vector<float> y(x.size());
  SiluArray(x.data(), x.size(), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ExpectSameBits(y[i], SiluF32(x[i]), x[i]);
    EXPECT_TRUE(std::isfinite(y[i]));
  }
  EXPECT_NEAR(SiluF32(1.5f), 1.5 / (1 + std::exp(-1.5)), 1e-6);
}

TEST(VectorMath, ArrayFormsTouchNothingBeyondTheirLength) {
  for (size_t n = 0; n < 20; ++n) {
    std::vector<float> x(n, 0.5f);
    std::vector<float> y(n + 8, -7.0f);
    ExpArray(x.data(), n, y.data());
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], ExpF32(0.5f));
    for (size_t i = n; i < y.size(); ++i) EXPECT_EQ(y[i], -7.0f);
  }
}

TEST(VectorMath, SineAndCosineAreRoundedCorrectlyUpToLargeAngles) {
  std::mt19937_64 rng(5);
  std::uniform_real_distribution<double> uniform(0, 2e6);
  for (int i = 0; i < 100000; ++i) {
    const double angle = i < 1000 ? i * 0.01 : uniform(rng);
    const SinCos sc = SinCosF64(angle);
    EXPECT_NEAR(sc.sin, std::sin(angle), 6.1e-8) << angle;
    EXPECT_NEAR(sc.cos, std::cos(angle), 6.1e-8) << angle;
  }
  EXPECT_EQ(SinCosF64(0).sin, 0.0f);
  EXPECT_EQ(SinCosF64(0).cos, 1.0f);
}

TEST(VectorMath, HalfAndBfloat16ConvertExactly) {
  EXPECT_EQ(HalfToF32(0x3C00), 1.0f);
  EXPECT_EQ(HalfToF32(0xC000), -2.0f);
  EXPECT_EQ(HalfToF32(0x7BFF), 65504.0f);
  EXPECT_EQ(HalfToF32(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(HalfToF32(0x83FF), -std::ldexp(1023.0f, -24));
  EXPECT_EQ(HalfToF32(0x7C00), kInfinity);
  EXPECT_TRUE(std::isnan(HalfToF32(0x7E00)));
  EXPECT_EQ(std::bit_cast<uint32_t>(HalfToF32(0x8000)), 0x80000000u);
  EXPECT_EQ(Bf16ToF32(0x3F80), 1.0f);
  EXPECT_EQ(Bf16ToF32(0xC049), -3.140625f);
}

}  // namespace
}  // namespace baton::kernels
