// Goal: SkinnyLinear equals the product in double within the rounding of its output, for every
// shape class (one, odd, tiny, larger than one run, gated, biased, strided), writes nothing else,
// leaves its counters zero, and gives a row the same bits whatever the other rows and their number.
#include "kernels/linear/skinny_linear_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/launch/cuda_testing.h"

namespace baton::kernels::testing {
namespace {

struct Case {
  int32_t rows = 1;
  int32_t n = 1;
  int32_t k = 8;
  bool gated = false;
  bool bias = false;
  bool f32 = false;
  int32_t x_pad = 0;
  int32_t y_pad = 0;
  HalfType type = HalfType::kBF16;
  int32_t n_step = 1;  // Outputs that are compared.
};

std::string Name(const Case& c) {
  return std::to_string(c.rows) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         (c.gated ? " gated" : "") + (c.bias ? " bias" : "") + (c.f32 ? " f32" : "");
}

int32_t NumSms() {
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  return sms;
}

class Problem {
 public:
  explicit Problem(const Case& c, uint64_t seed = 1)
      : c_(c),
        w_rows_(int64_t{c.n} * (c.gated ? 2 : 1)),
        x_stride_(c.k + c.x_pad),
        y_stride_(c.n + c.y_pad),
        x_(RandomHalves(c.type, static_cast<size_t>(c.rows * x_stride_), 1.0f, seed)),
        w_(RandomHalves(c.type, static_cast<size_t>(w_rows_ * c.k),
                        1.0f / std::sqrt(static_cast<float>(c.k)), seed + 1)),
        bias_(RandomHalves(c.type, static_cast<size_t>(w_rows_), 1.0f, seed + 2)),
        device_x_(HalvesFromFloats(c.type, x_)),
        device_w_(HalvesFromFloats(c.type, w_)),
        device_bias_(HalvesFromFloats(c.type, bias_)),
        y_(static_cast<size_t>(c.rows * y_stride_) * (c.f32 ? 4 : 2)),
        workspace_(SkinnyLinearWorkspaceBytes(c.rows, NumSms())),
        counters_(std::vector<uint32_t>(SkinnyLinearCounterBytes(NumSms()) / 4, 0)) {}

  SkinnyLinearParams Params(int32_t rows) const {
    return {.x = device_x_.data(),
            .x_stride = x_stride_,
            .w = device_w_.data(),
            .bias = c_.bias ? device_bias_.data() : nullptr,
            .y = y_.data(),
            .y_stride = y_stride_,
            .y_is_f32 = c_.f32,
            .gated = c_.gated,
            .type = c_.type,
            .rows = rows,
            .n = c_.n,
            .k = c_.k,
            .num_sms = NumSms(),
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_.size(),
            .counters = counters_.data()};
  }

  void Run(int32_t rows, const SkinnyLinearConfig& config = {}) {
    y_.Poison();
    ASSERT_EQ(SkinnyLinearWithConfig(Params(rows), config, stream_.get(), LaunchOrder::kAfter),
              KernelStatus::kOk);
    stream_.Synchronize();
    for (const uint32_t counter : counters_.ToHost()) ASSERT_EQ(counter, 0u);
  }

  std::vector<uint8_t> Bytes() const {
    std::vector<uint8_t> bytes(y_.size());
    y_.CopyTo(bytes.data());
    return bytes;
  }
  size_t RowBytes() const { return static_cast<size_t>(y_stride_) * (c_.f32 ? 4 : 2); }

  void Check(int32_t rows) const {
    const std::vector<uint8_t> bytes = Bytes();
    double difference = 0;
    double norm = 0;
    int bad = 0;
    for (int32_t m = 0; m < rows; ++m) {
      for (int32_t n = 0; n < c_.n; n += c_.n_step) {
        const double want = Reference(m, n);
        const double got = At(bytes, m * y_stride_ + n);
        difference += (got - want) * (got - want);
        norm += want * want;
        if (!(std::abs(got - want) < 0.05 + 0.02 * std::abs(want)) && ++bad <= 4) {
          ADD_FAILURE() << Name(c_) << " row " << m << " output " << n << ": " << got
                        << ", reference " << want;
        }
      }
    }
    EXPECT_EQ(bad, 0) << Name(c_);
    EXPECT_LT(std::sqrt(difference / (norm + 1e-30)), c_.f32 ? 1e-5 : HalfTolerance(c_.type))
        << Name(c_);
    for (int64_t i = 0; i < int64_t{c_.rows} * y_stride_; ++i) {
      if (i / y_stride_ < rows && i % y_stride_ < c_.n) continue;
      ASSERT_TRUE(std::isnan(At(bytes, i))) << Name(c_) << ": wrote element " << i;
    }
  }

 private:
  double Row(int32_t m, int64_t w_row) const {
    const float* x = x_.data() + m * x_stride_;
    const float* w = w_.data() + w_row * c_.k;
    double sum = c_.bias ? bias_[static_cast<size_t>(w_row)] : 0.0;
    for (int32_t i = 0; i < c_.k; ++i) sum += static_cast<double>(x[i]) * w[i];
    return sum;
  }
  double Reference(int32_t m, int32_t n) const {
    if (!c_.gated) return Row(m, n);
    const int64_t gate_row = n / 8 * 16 + n % 8;
    const double gate = Row(m, gate_row);
    return gate / (1 + std::exp(-gate)) * Row(m, gate_row + 8);
  }
  double At(const std::vector<uint8_t>& bytes, int64_t i) const {
    if (c_.f32) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    return FloatFromHalf(c_.type, bits);
  }

  Case c_;
  int64_t w_rows_;
  int64_t x_stride_;
  int64_t y_stride_;
  std::vector<float> x_;
  std::vector<float> w_;
  std::vector<float> bias_;
  DeviceArray<uint16_t> device_x_;
  DeviceArray<uint16_t> device_w_;
  DeviceArray<uint16_t> device_bias_;
  DeviceBytes y_;
  DeviceBytes workspace_;
  DeviceArray<uint32_t> counters_;
  TestStream stream_;
};

TEST(SkinnyLinearCuda, EqualsTheProductInDouble) {
  SKIP_WITHOUT_GPU();
  const std::vector<Case> cases = {
      {.rows = 1, .n = 1, .k = 8},
      {.rows = 1, .n = 64, .k = 64},
      {.rows = 3, .n = 7, .k = 8, .bias = true, .y_pad = 3},
      {.rows = 2, .n = 64, .k = 72, .f32 = true},
      {.rows = 5, .n = 200, .k = 136, .bias = true, .x_pad = 8, .y_pad = 1},
      {.rows = 8, .n = 129, .k = 1024, .f32 = true, .y_pad = 5},
      {.rows = 9, .n = 1000, .k = 1032, .type = HalfType::kF16},
      {.rows = 16, .n = 512, .k = 2048, .gated = true},
      {.rows = 17, .n = 40, .k = 520, .gated = true, .bias = true, .type = HalfType::kF16},
      {.rows = 1, .n = 8, .k = 16, .gated = true, .f32 = true},
      {.rows = 31, .n = 777, .k = 1960, .bias = true, .x_pad = 16},
      {.rows = 33, .n = 2048, .k = 512, .gated = true, .bias = true, .y_pad = 2},
      {.rows = 64, .n = 3072, .k = 2048, .n_step = 7},
      {.rows = 63, .n = 20000, .k = 256, .f32 = true, .n_step = 11},
      {.rows = 64, .n = 64, .k = 14336, .type = HalfType::kF16},
      {.rows = 24, .n = 10000, .k = 1000, .gated = true, .bias = true, .n_step = 13},
      {.rows = 65, .n = 300, .k = 72, .bias = true, .y_pad = 3},
      {.rows = 128, .n = 2000, .k = 1032, .gated = true, .n_step = 7},
      {.rows = 129, .n = 777, .k = 520, .f32 = true, .x_pad = 8},
      {.rows = 256, .n = 1160, .k = 2048, .bias = true, .type = HalfType::kF16, .n_step = 11},
  };
  for (const Case& c : cases) {
    Problem problem(c);
    problem.Run(c.rows);
    problem.Check(c.rows);
  }
}

TEST(SkinnyLinearCuda, EveryConfigurationIsRight) {
  SKIP_WITHOUT_GPU();
  for (const int32_t rows : {1, 12, 64, 200}) {
    const Case c = {.rows = rows, .n = 1160, .k = 1096, .gated = true, .n_step = 3};
    Problem problem(c);
    for (const SkinnyLinearConfig& config : std::vector<SkinnyLinearConfig>{
             {.ring_bytes = 100 * 1024}, {.ring_bytes = 150 * 1024}, {.l2_promotion_bytes = 256}}) {
      problem.Run(rows, config);
      problem.Check(rows);
    }
  }
}

TEST(SkinnyLinearCuda, ARowsBitsDependNeitherOnOtherRowsNorOnTheirNumber) {
  SKIP_WITHOUT_GPU();
  for (const Case& c : {Case{.rows = 256, .n = 2000, .k = 2048, .f32 = true},
                        Case{.rows = 256, .n = 2000, .k = 2048, .gated = true},
                        Case{.rows = 256, .n = 20000, .k = 328}}) {
    Problem problem(c);
    problem.Run(256);
    const std::vector<uint8_t> all = problem.Bytes();
    for (const int32_t rows : {1, 2, 8, 9, 16, 17, 32, 33, 48, 63, 64, 65, 128, 129, 200}) {
      problem.Run(rows);
      const std::vector<uint8_t> some = problem.Bytes();
      EXPECT_EQ(std::memcmp(some.data(), all.data(), problem.RowBytes() * rows), 0)
          << Name(c) << ": " << rows << " rows differ from the first of 256";
    }
  }
}

TEST(SkinnyLinearCuda, OverlappedChainsEqualOrderedOnes) {
  SKIP_WITHOUT_GPU();
  constexpr int32_t kSize = 1024;
  constexpr int kLength = 40;
  for (const int32_t rows : {1, 16, 100, 200}) {
    Problem problem({.rows = rows, .n = kSize, .k = kSize});
    const DeviceArray<uint16_t> buffers(static_cast<size_t>(rows) * kSize * (kLength + 1));
    TestStream stream;
    std::vector<std::vector<uint16_t>> results;
    for (const LaunchOrder order :
         {LaunchOrder::kAfter, LaunchOrder::kOverlapped, LaunchOrder::kOverlapped}) {
      SkinnyLinearParams p = problem.Params(rows);
      for (int i = 0; i < kLength; ++i) {
        if (i > 0) p.x = buffers.data() + static_cast<size_t>(i) * rows * kSize;
        p.y = buffers.data() + static_cast<size_t>(i + 1) * rows * kSize;
        ASSERT_EQ(SkinnyLinear(p, stream.get(), order), KernelStatus::kOk);
      }
      stream.Synchronize();
      std::vector<uint16_t> out = buffers.ToHost();
      out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(rows) * kSize);
      results.push_back(out);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST(SkinnyLinearCuda, RefusesBadArguments) {
  SKIP_WITHOUT_GPU();
  const Problem problem({.rows = 2, .n = 64, .k = 64});
  TestStream stream;
  const auto run = [&](SkinnyLinearParams p) {
    return SkinnyLinear(p, stream.get(), LaunchOrder::kAfter);
  };
  SkinnyLinearParams p = problem.Params(2);
  p.rows = 257;
  EXPECT_EQ(run(p), KernelStatus::kUnsupported);
  p = problem.Params(2);
  p.k = 60;
  EXPECT_EQ(run(p), KernelStatus::kUnsupported);
  p = problem.Params(2);
  p.x = nullptr;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
  p = problem.Params(2);
  p.w = static_cast<const char*>(p.w) + 2;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
  p = problem.Params(2);
  p.workspace_bytes = 16;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
  p = problem.Params(2);
  p.x_stride = 68;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::testing
