// Goal: FixedLinear gives every row the bits that SkinnyLinear gives it, 64 rows at a time, for
// every tile and shape class (random ones, gated, biased, strided, cut along k often, seldom and
// never, stored by the copy engine and by threads), and writes nothing else.
#include "kernels/linear/fixed_linear_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/launch/cuda_testing.h"
#include "kernels/linear/skinny_linear_cuda.h"

namespace baton::kernels::testing {
namespace {

constexpr int32_t kPieceRows = 64;

struct Case {
  int32_t rows = 65;
  int32_t n = 1;
  int32_t k = 8;
  bool gated = false;
  bool bias = false;
  bool f32 = false;
  int32_t x_pad = 0;
  int32_t y_pad = 0;
  HalfType type = HalfType::kBF16;
};

std::string Name(const Case& c) {
  return std::to_string(c.rows) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         (c.gated ? " gated" : "") + (c.bias ? " bias" : "") + (c.f32 ? " f32" : "") +
         (c.type == HalfType::kF16 ? " f16" : "") + " y_pad " + std::to_string(c.y_pad);
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
        x_(Halves(int64_t{c.rows} * x_stride_, 1.0f, seed)),
        w_(Halves(w_rows_ * c.k, 1.0f / std::sqrt(static_cast<float>(c.k)), seed + 1)),
        bias_(Halves(w_rows_, 1.0f, seed + 2)),
        y_(static_cast<size_t>(c.rows * y_stride_) * ElementBytes()),
        workspace_(SkinnyLinearWorkspaceBytes(kSkinnyRowsMax, NumSms())),
        counters_(std::vector<uint32_t>(SkinnyLinearCounterBytes(NumSms()) / 4, 0)) {}

  FixedLinearParams Params() const {
    return {.x = x_.data(),
            .x_stride = x_stride_,
            .w = w_.data(),
            .bias = c_.bias ? bias_.data() : nullptr,
            .y = y_.data(),
            .y_stride = y_stride_,
            .y_is_f32 = c_.f32,
            .gated = c_.gated,
            .type = c_.type,
            .rows = c_.rows,
            .n = c_.n,
            .k = c_.k,
            .num_sms = NumSms()};
  }

  std::vector<uint8_t> Skinny(int32_t piece_rows) {
    y_.Poison();
    for (int32_t row = 0; row < c_.rows; row += piece_rows) {
      const KernelStatus status =
          SkinnyLinear({.x = x_.data() + row * x_stride_,
                        .x_stride = x_stride_,
                        .w = w_.data(),
                        .bias = c_.bias ? bias_.data() : nullptr,
                        .y = static_cast<uint8_t*>(y_.data()) + row * y_stride_ * ElementBytes(),
                        .y_stride = y_stride_,
                        .y_is_f32 = c_.f32,
                        .gated = c_.gated,
                        .type = c_.type,
                        .rows = std::min(piece_rows, c_.rows - row),
                        .n = c_.n,
                        .k = c_.k,
                        .num_sms = NumSms(),
                        .workspace = workspace_.data(),
                        .workspace_bytes = workspace_.size(),
                        .counters = counters_.data()},
                       stream_.get(), LaunchOrder::kAfter);
      EXPECT_EQ(status, KernelStatus::kOk);
    }
    return Bytes();
  }

  std::vector<uint8_t> Fixed(const FixedLinearPlan& plan) {
    y_.Poison();
    EXPECT_EQ(FixedLinearWithPlan(Params(), plan, stream_.get(), LaunchOrder::kAfter),
              KernelStatus::kOk);
    return Bytes();
  }

  // Elements that differ, between rows too, where both left the poison.
  int64_t Differences(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) const {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); i += ElementBytes()) {
      count += std::memcmp(a.data() + i, b.data() + i, ElementBytes()) == 0 ? 0 : 1;
    }
    return count;
  }

  void Check() {
    const std::vector<uint8_t> want = Skinny(kPieceRows);
    for (const int32_t rows : {128, 256}) {
      EXPECT_EQ(Differences(Skinny(rows), want), 0)
          << Name(c_) << ": " << rows << " rows at a time";
    }
    const FixedLinearShape shape = {c_.rows, c_.n, c_.k, c_.gated};
    for (const auto& [tokens, cluster] : {std::pair{64, 1}, {128, 1}, {128, 2}, {192, 2}}) {
      const FixedLinearPlan plan = CutFixedLinear(shape, tokens, cluster, NumSms());
      EXPECT_EQ(Differences(Fixed(plan), want), 0)
          << Name(c_) << ": tiles of " << tokens << " tokens, clusters of " << cluster;
    }
  }

 private:
  size_t ElementBytes() const { return c_.f32 ? 4 : 2; }
  DeviceArray<uint16_t> Halves(int64_t count, float scale, uint64_t seed) const {
    return DeviceArray<uint16_t>(
        HalvesFromFloats(c_.type, RandomHalves(c_.type, static_cast<size_t>(count), scale, seed)));
  }
  std::vector<uint8_t> Bytes() const {
    stream_.Synchronize();
    std::vector<uint8_t> bytes(y_.size());
    y_.CopyTo(bytes.data());
    return bytes;
  }

  Case c_;
  int64_t w_rows_;
  int64_t x_stride_;
  int64_t y_stride_;
  DeviceArray<uint16_t> x_;
  DeviceArray<uint16_t> w_;
  DeviceArray<uint16_t> bias_;
  DeviceBytes y_;
  DeviceBytes workspace_;
  DeviceArray<uint32_t> counters_;
  TestStream stream_;
};

TEST(FixedLinearCuda, HasTheBitsOfSkinnyLinear) {
  SKIP_WITHOUT_GPU();
  const std::vector<Case> cases = {
      {.rows = 65, .n = 1, .k = 8},
      {.rows = 66, .n = 7, .k = 72, .bias = true, .y_pad = 3},
      {.rows = 128, .n = 128, .k = 128},
      {.rows = 192, .n = 264, .k = 1032, .y_pad = 8},
      {.rows = 193, .n = 1000, .k = 520, .bias = true, .x_pad = 8, .type = HalfType::kF16},
      {.rows = 300, .n = 777, .k = 1960, .bias = true, .f32 = true, .y_pad = 1},
      {.rows = 257, .n = 512, .k = 2048, .gated = true},
      {.rows = 129, .n = 1160, .k = 1096, .gated = true, .bias = true, .y_pad = 8},
      {.rows = 130, .n = 200, .k = 136, .gated = true, .y_pad = 4, .type = HalfType::kF16},
      {.rows = 140, .n = 40, .k = 264, .gated = true, .f32 = true},
      // Tiles that lie in one run, and tiles of two.
      {.rows = 200, .n = 17000, .k = 256},
      {.rows = 100, .n = 12000, .k = 328, .gated = true, .bias = true},
      // Several turns of every cluster, and the shape of a real product.
      {.rows = 700, .n = 8200, .k = 136, .type = HalfType::kF16},
      {.rows = 400, .n = 3072, .k = 2048},
      {.rows = 150, .n = 256, .k = 14336},
  };
  for (const Case& c : cases) Problem(c).Check();
}

TEST(FixedLinearCuda, HasTheBitsOfSkinnyLinearForRandomShapes) {
  SKIP_WITHOUT_GPU();
  std::mt19937 rng(20);
  const auto draw = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(rng);
  };
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Case c = {.rows = draw(65, 700), .n = draw(1, 1500), .k = draw(1, 190) * 8};
    c.gated = draw(0, 2) == 0;
    if (c.gated) c.n = (c.n + 7) / 8 * 8;
    c.bias = draw(0, 1) == 0;
    c.f32 = draw(0, 3) == 0;
    c.x_pad = draw(0, 1) * 8;
    // Every other one with rows that the copy engine can store.
    c.y_pad = draw(0, 1) == 0 ? (8 - c.n % 8) % 8 : draw(0, 5);
    c.type = draw(0, 1) == 0 ? HalfType::kBF16 : HalfType::kF16;
    Problem(c, seed).Check();
  }
}

TEST(FixedLinearCuda, OverlappedChainsEqualOrderedOnes) {
  SKIP_WITHOUT_GPU();
  constexpr int32_t kSize = 1024;
  constexpr int32_t kRows = 200;
  constexpr int kLength = 20;
  Problem problem({.rows = kRows, .n = kSize, .k = kSize});
  const DeviceArray<uint16_t> buffers(static_cast<size_t>(kRows) * kSize * (kLength + 1));
  TestStream stream;
  std::vector<std::vector<uint16_t>> results;
  for (const LaunchOrder order :
       {LaunchOrder::kAfter, LaunchOrder::kOverlapped, LaunchOrder::kOverlapped}) {
    FixedLinearParams p = problem.Params();
    for (int i = 0; i < kLength; ++i) {
      if (i > 0) p.x = buffers.data() + static_cast<size_t>(i) * kRows * kSize;
      p.y = buffers.data() + static_cast<size_t>(i + 1) * kRows * kSize;
      ASSERT_EQ(FixedLinear(p, stream.get(), order), KernelStatus::kOk);
    }
    stream.Synchronize();
    std::vector<uint16_t> out = buffers.ToHost();
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(kRows) * kSize);
    results.push_back(out);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(FixedLinearCuda, RefusesBadArguments) {
  SKIP_WITHOUT_GPU();
  const Problem problem({.rows = 70, .n = 64, .k = 64});
  TestStream stream;
  const auto run = [&](FixedLinearParams p) {
    return FixedLinear(p, stream.get(), LaunchOrder::kAfter);
  };
  FixedLinearParams p = problem.Params();
  p.k = 60;
  EXPECT_EQ(run(p), KernelStatus::kUnsupported);
  p = problem.Params();
  p.rows = 0;
  EXPECT_EQ(run(p), KernelStatus::kUnsupported);
  p = problem.Params();
  p.x = nullptr;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
  p = problem.Params();
  p.w = static_cast<const char*>(p.w) + 2;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
  p = problem.Params();
  p.x_stride = 68;
  EXPECT_EQ(run(p), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::testing
