// RopeAnglesCuda has the CPU's bits. RopeKvWriteCuda agrees with a double-precision reference
// within rounding, copies values exactly, writes the right slots and nothing else of the pool.
#include "kernels/rope/rope_cuda.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/launch/cuda_testing.h"
#include "kernels/rope/rope.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::FloatFromHalf;
using testing::FloatsFromHalves;
using testing::HalfTolerance;
using testing::HalvesFromFloats;
using testing::RandomHalves;
using testing::RelativeError;
using testing::TestStream;

TEST(RopeAnglesCuda, HasTheCpusBits) {
  SKIP_WITHOUT_GPU();
  for (const int64_t half : {1, 8, 64, 100}) {
    std::vector<float> frequencies;
    for (int64_t i = 0; i < half; ++i) {
      frequencies.push_back(std::pow(500000.0f, -static_cast<float>(i) / static_cast<float>(half)));
    }
    std::vector<int32_t> positions = {0, 1, 2, 4095, 131071, 1000000};
    for (int32_t i = 0; i < 50; ++i) positions.push_back(i * 97);
    std::vector<float> expected(positions.size() * static_cast<size_t>(2 * half));
    RopeAngles({.positions = positions.data(),
                .inverse_frequencies = frequencies.data(),
                .out = expected.data(),
                .half = half,
                .scale = 1.25f},
               0, static_cast<int64_t>(positions.size()));
    const TestStream stream;
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<float> device_frequencies(frequencies);
    const DeviceArray<float> out(expected.size());
    ASSERT_EQ(RopeAnglesCuda({.positions = device_positions.data(),
                              .inverse_frequencies = device_frequencies.data(),
                              .out = out.data(),
                              .rows = static_cast<int64_t>(positions.size()),
                              .half = half,
                              .scale = 1.25f},
                             stream.get(), LaunchOrder::kAfter),
              KernelStatus::kOk);
    stream.Synchronize();
    EXPECT_EQ(out.ToHost(), expected) << "half " << half;
  }
}

struct Case {
  int64_t rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens_log2 = 4;
  HalfType type = HalfType::kBF16;
  bool qk_norm = false;
};

constexpr int32_t kNumLayers = 3;
constexpr int32_t kLayer = 1;
constexpr float kEpsilon = 1e-6f;

class RopeKvWrite {
 public:
  RopeKvWrite(const Case& c, uint64_t seed) : c_(c) {
    const int64_t block_tokens = int64_t{1} << c.block_tokens_log2;
    head_stride_ = 2 * block_tokens * c.head_dim;
    block_stride_ = kNumLayers * c.num_kv_heads * head_stride_;
    num_blocks_ = (c.rows + block_tokens - 1) / block_tokens + 2;
    const auto width = static_cast<size_t>(c.num_heads + 2 * c.num_kv_heads);
    qkv_ = RandomHalves(c.type, static_cast<size_t>(c.rows * c.head_dim) * width, 1, seed);
    std::mt19937_64 rng(seed);
    std::uniform_real_distribution<float> angle(-4, 4);
    for (int64_t r = 0; r < c.rows; ++r) {
      std::vector<float> sines;
      for (int32_t i = 0; i < c.head_dim / 2; ++i) {
        const float a = angle(rng);
        angles_.push_back(std::cos(a));
        sines.push_back(std::sin(a));
      }
      angles_.insert(angles_.end(), sines.begin(), sines.end());
    }
    slots_.resize(static_cast<size_t>(num_blocks_ * block_tokens));
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), rng);
    slots_.resize(static_cast<size_t>(c.rows));
    for (size_t r = 2; r < slots_.size(); r += 5) slots_[r] = -1;
    const auto dim = static_cast<size_t>(c.head_dim);
    q_gamma_ = RandomHalves(HalfType::kF16, dim, 1, seed + 1);
    k_gamma_ = RandomHalves(HalfType::kF16, dim, 1, seed + 2);
  }

  void RunAndCheck() {
    const TestStream stream;
    const DeviceArray<uint16_t> qkv(HalvesFromFloats(c_.type, qkv_));
    const DeviceArray<float> angles(angles_);
    const DeviceArray<int64_t> slots(slots_);
    const DeviceArray<float> q_gamma(q_gamma_);
    const DeviceArray<float> k_gamma(k_gamma_);
    const DeviceArray<uint16_t> q(static_cast<size_t>(c_.rows * c_.num_heads * c_.head_dim));
    const DeviceArray<uint16_t> pool(static_cast<size_t>(num_blocks_ * block_stride_));
    const KernelStatus status =
        RopeKvWriteCuda({.qkv = qkv.data(),
                         .angles = angles.data(),
                         .slots = slots.data(),
                         .q_gamma = c_.qk_norm ? q_gamma.data() : nullptr,
                         .k_gamma = c_.qk_norm ? k_gamma.data() : nullptr,
                         .qk_epsilon = kEpsilon,
                         .q = q.data(),
                         .kv = {.base = pool.data(),
                                .block_stride = block_stride_,
                                .layer_offset = kLayer * c_.num_kv_heads * head_stride_,
                                .head_stride = head_stride_,
                                .value_offset = head_stride_ / 2,
                                .block_tokens_log2 = c_.block_tokens_log2,
                                .head_dim = c_.head_dim,
                                .num_kv_heads = c_.num_kv_heads,
                                .num_blocks = static_cast<int32_t>(num_blocks_),
                                .type = c_.type},
                         .rows = c_.rows,
                         .num_heads = c_.num_heads},
                        stream.get(), LaunchOrder::kOverlapped);
    ASSERT_EQ(status, KernelStatus::kOk) << KernelStatusName(status);
    stream.Synchronize();
    CheckQueries(FloatsFromHalves(c_.type, q.ToHost()));
    CheckPool(pool.ToHost());
  }

 private:
  // Head `h` of a row after norm (with gamma) and rotation, in double.
  std::vector<float> Rotated(int64_t row, int32_t h, const std::vector<float>& gamma) const {
    const int64_t dim = c_.head_dim;
    const int64_t half = dim / 2;
    const float* in = qkv_.data() + (row * (c_.num_heads + 2 * c_.num_kv_heads) + h) * dim;
    std::vector<double> x(in, in + dim);
    if (c_.qk_norm) {
      double sum = 0;
      for (const double v : x) sum += v * v;
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(dim) + kEpsilon);
      for (size_t i = 0; i < x.size(); ++i) x[i] *= inverse * gamma[i];
    }
    std::vector<float> y(x.size());
    for (int64_t i = 0; i < half; ++i) {
      const double c = angles_[static_cast<size_t>(row * dim + i)];
      const double s = angles_[static_cast<size_t>(row * dim + half + i)];
      const double a = x[static_cast<size_t>(i)];
      const double b = x[static_cast<size_t>(i + half)];
      y[static_cast<size_t>(i)] = static_cast<float>(a * c - b * s);
      y[static_cast<size_t>(i + half)] = static_cast<float>(b * c + a * s);
    }
    return y;
  }

  void CheckQueries(const std::vector<float>& q) const {
    std::vector<float> expected;
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int32_t h = 0; h < c_.num_heads; ++h) {
        const std::vector<float> head = Rotated(r, h, q_gamma_);
        expected.insert(expected.end(), head.begin(), head.end());
      }
    }
    EXPECT_LE(RelativeError(expected, q), HalfTolerance(c_.type));
  }

  void CheckPool(const std::vector<uint16_t>& pool) const {
    std::vector<bool> written(pool.size());
    std::vector<float> expected;
    std::vector<float> keys;
    const int64_t dim = c_.head_dim;
    const int64_t block_tokens = int64_t{1} << c_.block_tokens_log2;
    for (int64_t r = 0; r < c_.rows; ++r) {
      const int64_t slot = slots_[static_cast<size_t>(r)];
      if (slot < 0) continue;
      for (int32_t h = 0; h < c_.num_kv_heads; ++h) {
        const auto key = static_cast<size_t>(slot / block_tokens * block_stride_ +
                                             (kLayer * c_.num_kv_heads + h) * head_stride_ +
                                             slot % block_tokens * dim);
        const std::vector<float> head = Rotated(r, c_.num_heads + h, k_gamma_);
        expected.insert(expected.end(), head.begin(), head.end());
        const size_t value = key + static_cast<size_t>(head_stride_ / 2);
        const float* in =
            qkv_.data() +
            (r * (c_.num_heads + 2 * c_.num_kv_heads) + c_.num_heads + c_.num_kv_heads + h) * dim;
        for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
          keys.push_back(FloatFromHalf(c_.type, pool[key + i]));
          ASSERT_EQ(FloatFromHalf(c_.type, pool[value + i]), in[i]) << "row " << r << " head " << h;
          written[key + i] = written[value + i] = true;
        }
      }
    }
    EXPECT_LE(RelativeError(expected, keys), HalfTolerance(c_.type));
    for (size_t i = 0; i < pool.size(); ++i) {
      ASSERT_TRUE(written[i] || pool[i] == 0xFFFF) << "written outside of the slots at " << i;
    }
  }

  const Case c_;
  int64_t head_stride_ = 0;
  int64_t block_stride_ = 0;
  int64_t num_blocks_ = 0;
  std::vector<float> qkv_;
  std::vector<float> angles_;
  std::vector<int64_t> slots_;
  std::vector<float> q_gamma_;
  std::vector<float> k_gamma_;
};

void Check(const Case& c) {
  SCOPED_TRACE(::testing::Message()
               << c.rows << " rows, " << c.num_heads << " + 2 * " << c.num_kv_heads << " heads of "
               << c.head_dim << ", norm " << c.qk_norm);
  RopeKvWrite(c, 7).RunAndCheck();
}

TEST(RopeKvWriteCuda, AgreesWithTheReferenceInSmallShapes) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const int32_t dim : {2, 8, 10, 16, 48, 64, 66, 96, 128, 256, 512, 520}) {
      for (const bool norm : {false, true}) {
        Check({.rows = 3,
               .num_heads = 3,
               .num_kv_heads = 1,
               .head_dim = dim,
               .type = type,
               .qk_norm = norm});
      }
    }
  }
}

TEST(RopeKvWriteCuda, AgreesWithTheReference) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const bool norm : {false, true}) {
      for (const int64_t rows : {1, 64, 700}) {
        Check({.rows = rows,
               .num_heads = 32,
               .num_kv_heads = 8,
               .head_dim = 128,
               .block_tokens_log2 = 6,
               .type = type,
               .qk_norm = norm});
      }
      Check({.rows = 520,
             .num_heads = 5,
             .num_kv_heads = 5,
             .head_dim = 80,
             .type = type,
             .qk_norm = norm});
    }
  }
}

TEST(RopeKvWriteCuda, RefusesWhatItCannotDo) {
  RopeKvWriteCudaParams p;
  p.rows = 1;
  p.num_heads = 1;
  EXPECT_EQ(RopeKvWriteCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p.kv.head_dim = 25;
  EXPECT_EQ(RopeKvWriteCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.kv.head_dim = 128;
  EXPECT_EQ(RopeKvWriteCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels
