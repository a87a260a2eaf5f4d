// LinearCpu equals the reference bit for bit for every stored type, shape and cut into tiles;
// outputs are poisoned and guarded; a NaN in one row stays there.
#include "kernels/linear/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0f;

struct alignas(64) Line {
  std::byte bytes[64];
};

std::vector<Line> Aligned(size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

std::vector<float> RandomFloats(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& v : out) v = normal(rng);
  return out;
}

// Values that the stored type holds exactly, in that type.
std::vector<uint16_t> RandomShorts(int64_t n, WeightType type, uint32_t seed) {
  const std::vector<float> floats = RandomFloats(n, seed);
  std::vector<uint16_t> out;
  for (const float f : floats) {
    const auto bits = std::bit_cast<uint32_t>(f);
    if (type == WeightType::kBF16) {
      out.push_back(static_cast<uint16_t>(bits >> 16));
    } else {  // Round towards zero; exponents of a normal distribution fit.
      const int exponent = static_cast<int>((bits >> 23) & 0xFF) - 127 + 15;
      const uint32_t sign = (bits >> 16) & 0x8000u;
      out.push_back(static_cast<uint16_t>(
          exponent <= 0 ? sign
                        : sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3FFu)));
    }
  }
  return out;
}

struct Problem {
  int64_t rows, n, k;
  WeightType type;
  bool gated;
  bool with_bias;
};

class Instance {
 public:
  explicit Instance(const Problem& problem)
      : problem_(problem),
        x_(RandomFloats(problem.rows * problem.k, 1)),
        bias_(RandomFloats(NumPanels(problem.n, problem.gated) * kPanelRows, 2)),
        packed_(Aligned(PackedWeightBytes(problem.n, problem.k, problem.gated, problem.type))),
        scratch_(Aligned(LinearScratchFloats() * sizeof(float))) {
    for (int part = 0; part < (problem.gated ? 2 : 1); ++part) {
      // Two segments, as concatenated projections are packed.
      const int64_t first = problem.n / 3;
      Pack(first, 0, part);
      Pack(problem.n - first, first, part);
    }
  }

  std::vector<float>& x() { return x_; }
  int64_t num_panels() const { return NumPanels(problem_.n, problem_.gated); }

  std::vector<float> Reference() {
    return Compute(
        [this](const LinearParams& p) { LinearRef(p, 0, problem_.rows, 0, num_panels()); });
  }
  // In tiles of at most `tile_rows` x `tile_panels`.
  std::vector<float> Tiled(int64_t tile_rows, int64_t tile_panels) {
    return Compute([&](const LinearParams& p) {
      for (int64_t r = 0; r < problem_.rows; r += tile_rows) {
        for (int64_t q = 0; q < num_panels(); q += tile_panels) {
          LinearCpu(p, r, std::min(r + tile_rows, problem_.rows), q,
                    std::min(q + tile_panels, num_panels()),
                    reinterpret_cast<float*>(scratch_.data()));
        }
      }
    });
  }

 private:
  void Pack(int64_t rows, int64_t first_row, int part) {
    const auto seed = static_cast<uint32_t>(10 + first_row + part);
    if (problem_.type == WeightType::kF32) {
      const auto w = RandomFloats(rows * problem_.k, seed);
      PackLinearRows(w.data(), WeightType::kF32, rows, problem_.k, first_row, problem_.gated, part,
                     WeightType::kF32, packed_.data());
    } else {
      const auto w = RandomShorts(rows * problem_.k, problem_.type, seed);
      PackLinearRows(w.data(), problem_.type, rows, problem_.k, first_row, problem_.gated, part,
                     problem_.type, packed_.data());
    }
  }
  template <typename Kernel>
  std::vector<float> Compute(Kernel kernel) {
    const auto size = static_cast<size_t>(problem_.rows * problem_.n);
    std::vector<float> y(size + 16, kNaN);
    std::fill(y.begin() + static_cast<ptrdiff_t>(size), y.end(), kGuard);
    kernel(LinearParams{.x = x_.data(),
                        .packed = packed_.data(),
                        .bias = problem_.with_bias ? bias_.data() : nullptr,
                        .y = y.data(),
                        .n = problem_.n,
                        .k = problem_.k,
                        .type = problem_.type,
                        .gated = problem_.gated});
    for (size_t i = size; i < y.size(); ++i) EXPECT_EQ(y[i], kGuard);
    y.resize(size);
    return y;
  }

  Problem problem_;
  std::vector<float> x_;
  std::vector<float> bias_;
  std::vector<Line> packed_;
  std::vector<Line> scratch_;
};

TEST(Linear, EqualsTheReferenceBitForBitForEveryTypeShapeAndTiling) {
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    for (const bool gated : {false, true}) {
      for (const int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 13, 96, 100}) {
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                                   {16, 8},
                                   {17, 33},
                                   {172, 64},
                                   {100, 257},
                                   {256, 512}}) {
          if (rows * n * k > 3'000'000) continue;  // Seconds under a sanitizer.
          Instance instance({rows, n, k, type, gated, n != 16});
          const std::vector<float> expected = instance.Reference();
          EXPECT_EQ(instance.Tiled(96, 8), expected) << rows << " " << n << " " << k;
          EXPECT_EQ(instance.Tiled(6, 6), expected) << rows << " " << n << " " << k;
          EXPECT_EQ(instance.Tiled(1, 2), expected) << rows << " " << n << " " << k;
          EXPECT_EQ(instance.Tiled(11, 4), expected) << rows << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(Linear, ReferenceAgreesWithDoublePrecision) {
  // The reference itself against first principles: identity-like weights make the sum readable.
  Instance instance({2, 20, 50, WeightType::kF32, false, true});
  const std::vector<float> y = instance.Reference();
  const auto w0 = RandomFloats(6 * 50, 10);  // First segment: rows 0 to 5.
  const auto bias = RandomFloats(32, 2);
  for (size_t row = 0; row < 2; ++row) {
    for (size_t column = 0; column < 6; ++column) {
      double sum = bias[column];
      for (size_t i = 0; i < 50; ++i) {
        sum += static_cast<double>(instance.x()[row * 50 + i]) * w0[column * 50 + i];
      }
      EXPECT_NEAR(y[row * 20 + column], sum, 1e-5);
    }
  }
}

TEST(Linear, ANaNInOneRowStaysInThatRow) {
  Instance instance({13, 48, 40, WeightType::kBF16, true, false});
  const std::vector<float> clean = instance.Tiled(96, 8);
  instance.x()[4 * 40 + 7] = kNaN;
  const std::vector<float> poisoned = instance.Tiled(96, 8);
  for (size_t i = 0; i < clean.size(); ++i) {
    if (i / 48 == 4) {
      EXPECT_TRUE(std::isnan(poisoned[i]));
    } else {
      EXPECT_EQ(poisoned[i], clean[i]);
    }
  }
}

TEST(Linear, MixedStoredTypesArePackedAsFloat32) {
  std::vector<Line> packed = Aligned(PackedWeightBytes(2, 3, false, WeightType::kF32));
  const float f32[] = {1, 2, 3};
  const uint16_t bf16[] = {0x3F80, 0x4000, 0xC000};
  PackLinearRows(f32, WeightType::kF32, 1, 3, 0, false, 0, WeightType::kF32, packed.data());
  PackLinearRows(bf16, WeightType::kBF16, 1, 3, 1, false, 0, WeightType::kF32, packed.data());
  const auto* p = reinterpret_cast<const float*>(packed.data());
  EXPECT_EQ(p[0], 1);
  EXPECT_EQ(p[1], 1);
  EXPECT_EQ(p[16 + 1], 2);
  EXPECT_EQ(p[32], 3);
  EXPECT_EQ(p[32 + 1], -2);
}

}  // namespace
}  // namespace baton::kernels
