// The vector kernel equals the reference bit for bit and writes only the slots it was given; the
// angles agree with the math library.
#include "kernels/rope/rope.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kGuard = -12345.0f;

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

struct Shape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

struct Result {
  std::vector<float> q;
  std::vector<float> pool;
};

constexpr int64_t kBlocks = 5;
constexpr int32_t kBlockTokensLog2 = 4;
constexpr int64_t kLayers = 2;

template <typename Kernel>
Result RunKernel(const Shape& s, const std::vector<int64_t>& slots, const std::vector<float>& qkv,
                 const std::vector<float>& angles, int64_t layer, Kernel kernel) {
  const auto rows = static_cast<int64_t>(slots.size());
  const int64_t head_stride = 2 * (int64_t{1} << kBlockTokensLog2) * s.head_dim;
  const int64_t layer_stride = head_stride * s.num_kv_heads;
  Result r;
  r.q.assign(static_cast<size_t>(rows * s.num_heads * s.head_dim) + 8, kGuard);
  r.pool.assign(static_cast<size_t>(kBlocks * kLayers * layer_stride) + 8, kGuard);
  const RopeKvWriteParams p{.qkv = qkv.data(),
                            .angles = angles.data(),
                            .slots = slots.data(),
                            .q = r.q.data(),
                            .kv = {.base = r.pool.data() + layer * layer_stride,
                                   .block_stride = kLayers * layer_stride,
                                   .head_stride = head_stride,
                                   .value_offset = head_stride / 2,
                                   .block_tokens_log2 = kBlockTokensLog2,
                                   .head_dim = s.head_dim},
                            .num_heads = s.num_heads,
                            .num_kv_heads = s.num_kv_heads};
  kernel(p, 0, rows);
  return r;
}

TEST(RopeKvWrite, EqualsTheReferenceBitForBitAndWritesNothingElse) {
  for (const Shape s : {Shape{8, 4, 8}, Shape{1, 1, 128}, Shape{4, 2, 20}, Shape{3, 3, 2},
                        Shape{2, 1, 256}, Shape{6, 2, 34}}) {
    for (const size_t rows : {0u, 1u, 7u}) {
      std::vector<int64_t> slots;
      for (size_t i = 0; i < rows; ++i) slots.push_back(static_cast<int64_t>((i * 29 + 3) % 80));
      const auto dim = static_cast<size_t>(s.head_dim);
      const auto heads = static_cast<size_t>(s.num_heads + 2 * s.num_kv_heads);
      const auto qkv = RandomFloats(rows * heads * dim, 1);
      const auto angles = RandomFloats(rows * dim, 2);
      for (const int64_t layer : {0, 1}) {
        const Result expected = RunKernel(s, slots, qkv, angles, layer, RopeKvWriteRef);
        const Result actual = RunKernel(s, slots, qkv, angles, layer, RopeKvWriteCpu);
        EXPECT_EQ(actual.q, expected.q);
        EXPECT_EQ(actual.pool, expected.pool);
        size_t written = 0;
        for (const float v : actual.pool) written += v != kGuard;
        EXPECT_EQ(written, rows * dim * 2 * static_cast<size_t>(s.num_kv_heads));
        for (size_t i = actual.q.size() - 8; i < actual.q.size(); ++i) {
          EXPECT_EQ(actual.q[i], kGuard);
        }
      }
    }
  }
}

TEST(RopeKvWrite, RotatesPairsHalfAHeadApart) {
  // One head, angle of pair 0 a quarter turn, of pair 1 none.
  const std::vector<float> qkv = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<float> angles = {0, 1, 1, 0};
  const Result r = RunKernel({1, 1, 4}, {17}, qkv, angles, 0, RopeKvWriteCpu);
  EXPECT_EQ(std::vector<float>(r.q.begin(), r.q.begin() + 4), (std::vector<float>{-3, 2, 1, 4}));
  const size_t block_floats = 2 * 2 * 16 * 4;
  const auto key = r.pool.begin() + static_cast<ptrdiff_t>(block_floats + 1 * 4);
  EXPECT_EQ(std::vector<float>(key, key + 4), (std::vector<float>{-7, 6, 5, 8}));
  EXPECT_EQ(std::vector<float>(key + 64, key + 68), (std::vector<float>{9, 10, 11, 12}));
}

TEST(RopeAngles, AgreeWithTheMathLibraryAtSmallAndLargePositions) {
  const std::vector<int32_t> positions = {0, 1, 2, 1023, 131071};
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(std::pow(10000.0f, -i / 32.0f));
  std::vector<float> out(positions.size() * 64 + 4, kGuard);
  const RopeAnglesParams p{.positions = positions.data(),
                           .inverse_frequencies = frequencies.data(),
                           .out = out.data(),
                           .half = 32,
                           .scale = 1.25f};
  RopeAngles(p, 0, static_cast<int64_t>(positions.size()));
  for (size_t row = 0; row < positions.size(); ++row) {
    for (size_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(static_cast<float>(positions[row]) * frequencies[i]);
      EXPECT_NEAR(out[row * 64 + i], 1.25 * std::cos(angle), 2e-7);
      EXPECT_NEAR(out[row * 64 + 32 + i], 1.25 * std::sin(angle), 2e-7);
    }
  }
  for (size_t i = out.size() - 4; i < out.size(); ++i) EXPECT_EQ(out[i], kGuard);
}

}  // namespace
}  // namespace baton::kernels
