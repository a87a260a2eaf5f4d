// Goal: GatedLinear equals the formula in double for both types, every cut, ragged rows, outputs
// and k, and strides, and writes nothing else; a row's bits do not depend on the other rows.
#include "kernels/gated_linear/gated_linear_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/launch/cuda_testing.h"

namespace baton::kernels::testing {
namespace {

int32_t NumSms() {
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  return sms;
}

struct Case {
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t x_pad = 0;
  int32_t y_pad = 0;
  HalfType type = HalfType::kBF16;
  int32_t n_step = 1;  // Outputs that are compared.
};

class Problem {
 public:
  explicit Problem(const Case& c)
      : c_(c),
        x_stride_(c.k + c.x_pad),
        y_stride_(c.n + c.y_pad),
        x_(RandomHalves(c.type, static_cast<size_t>(c.rows * x_stride_), 1.0f, 1)),
        w_(RandomHalves(c.type, size_t{2} * c.n * c.k, 2 / std::sqrt(static_cast<float>(c.k)), 2)),
        device_x_(HalvesFromFloats(c.type, x_)),
        device_w_(HalvesFromFloats(c.type, w_)),
        y_(static_cast<size_t>(c.rows * y_stride_)) {}

  GatedLinearParams Params(int32_t rows) const {
    return {.x = device_x_.data(),
            .x_stride = x_stride_,
            .w = device_w_.data(),
            .y = y_.data(),
            .y_stride = y_stride_,
            .type = c_.type,
            .rows = rows,
            .n = c_.n,
            .k = c_.k,
            .num_sms = NumSms()};
  }

  std::vector<float> Run(const GatedLinearPlan& plan, int32_t rows) {
    EXPECT_EQ(GatedLinearWithPlan(Params(rows), plan, stream_.get(), LaunchOrder::kAfter),
              KernelStatus::kOk);
    stream_.Synchronize();
    return FloatsFromHalves(c_.type, y_.ToHost());
  }

  void Check(const GatedLinearPlan& plan) {
    const std::vector<float> y = Run(plan, c_.rows);
    std::vector<float> want;
    std::vector<float> got;
    for (int32_t m = 0; m < c_.rows; ++m) {
      for (int32_t i = 0; i < y_stride_; ++i) {
        const float value = y[static_cast<size_t>(m * y_stride_ + i)];
        if (i >= c_.n) {
          ASSERT_TRUE(std::isnan(value)) << "wrote between rows";
        } else if (i % c_.n_step == 0) {
          const double gate = Sum(m, i / 8 * 16 + i % 8);
          want.push_back(
              static_cast<float>(gate / (1 + std::exp(-gate)) * Sum(m, i / 8 * 16 + 8 + i % 8)));
          got.push_back(value);
        }
      }
    }
    EXPECT_LT(RelativeError(want, got), HalfTolerance(c_.type))
        << c_.rows << " x " << c_.n << " x " << c_.k << ", " << plan.columns << " columns, cluster "
        << plan.cluster;
  }

 private:
  double Sum(int64_t m, int64_t row) const {
    double sum = 0;
    for (int32_t j = 0; j < c_.k; ++j) {
      sum += static_cast<double>(x_[static_cast<size_t>(m * x_stride_ + j)]) *
             w_[static_cast<size_t>(row * c_.k + j)];
    }
    return sum;
  }

  const Case c_;
  const int64_t x_stride_;
  const int64_t y_stride_;
  std::vector<float> x_;
  std::vector<float> w_;
  DeviceArray<uint16_t> device_x_;
  DeviceArray<uint16_t> device_w_;
  DeviceArray<uint16_t> y_;
  TestStream stream_;
};

GatedLinearPlan Cut(const Case& c, int32_t columns, int32_t cluster, int32_t group_rows) {
  const int32_t row_tiles = (c.rows + kGatedTileRows - 1) / kGatedTileRows;
  GatedLinearPlan plan = {.columns = columns,
                          .cluster = cluster,
                          .num_row_units = (row_tiles + cluster - 1) / cluster,
                          .num_column_tiles = (2 * c.n + columns - 1) / columns,
                          .group_rows = group_rows};
  plan.num_blocks =
      std::min(plan.num_row_units * plan.num_column_tiles, NumSms() / cluster) * cluster;
  return plan;
}

TEST(GatedLinearCuda, EqualsTheFormulaForEveryCut) {
  SKIP_WITHOUT_GPU();
  const Case cases[] = {{1, 8, 8},        {65, 120, 72, 8, 16},
                        {129, 128, 64},   {200, 512, 200, 0, 8, HalfType::kF16},
                        {300, 1000, 520}, {385, 256, 1024, 0, 0, HalfType::kF16}};
  for (const Case& c : cases) {
    Problem problem(c);
    for (const int32_t columns : {256, 224}) {
      for (const int32_t cluster : {1, 2}) problem.Check(Cut(c, columns, cluster, 1));
    }
  }
}

TEST(GatedLinearCuda, TakesSeveralTilesABlock) {
  SKIP_WITHOUT_GPU();
  const Case c = {.rows = 1100, .n = 7168, .k = 136, .n_step = 5};
  Problem problem(c);
  problem.Check(PlanGatedLinear({.rows = c.rows, .n = c.n, .k = c.k}, NumSms()));
  for (const int32_t cluster : {1, 2}) problem.Check(Cut(c, 224, cluster, 3));
}

TEST(GatedLinearCuda, GivesARowTheSameBitsWhateverTheOthers) {
  SKIP_WITHOUT_GPU();
  const Case c = {.rows = 520, .n = 512, .k = 1024};
  Problem problem(c);
  const std::vector<float> all = problem.Run(Cut(c, 256, 2, 2), c.rows);
  const Case few = {.rows = 70, .n = c.n, .k = c.k};
  const std::vector<float> some = problem.Run(Cut(few, 224, 1, 1), few.rows);
  for (size_t i = 0; i < size_t{70} * 512; ++i) ASSERT_EQ(all[i], some[i]) << i;
}

TEST(GatedLinearCuda, RefusesWhatItCannotDo) {
  SKIP_WITHOUT_GPU();
  Problem problem({.rows = 4, .n = 16, .k = 16});
  GatedLinearParams p = problem.Params(4);
  p.n = 12;
  EXPECT_EQ(GatedLinear(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.n = 16;
  p.k = 12;
  EXPECT_EQ(GatedLinear(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.k = 16;
  p.y = nullptr;
  EXPECT_EQ(GatedLinear(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::testing
