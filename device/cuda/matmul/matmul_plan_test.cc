// Goal: products through cuBLASLt equal the product in double for actual row counts below their
// bucket, both types, float32 outputs, bias and strides; choices survive in the file; capture
// works.
#include "device/cuda/matmul/matmul_plan.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/launch/cuda_testing.h"

namespace baton::cuda {
namespace {

using kernels::HalfType;
using kernels::testing::DeviceArray;
using kernels::testing::DeviceBytes;
using kernels::testing::FloatFromHalf;
using kernels::testing::FloatsFromHalves;
using kernels::testing::HalfTolerance;
using kernels::testing::HalvesFromFloats;
using kernels::testing::RandomHalves;
using kernels::testing::RelativeError;
using kernels::testing::TestStream;

MatmulPlansOptions Options(const DeviceBytes& workspace) {
  return {.buckets = {16, 128, 512},
          .library = {.workspace = workspace.data(), .workspace_bytes = workspace.size()},
          .candidates_max = 8};
}

struct Data {
  Data(const MatmulShape& shape, int32_t rows, int32_t y_pad)
      : shape(shape),
        rows(rows),
        y_stride(shape.n + y_pad),
        x(RandomHalves(shape.type, static_cast<size_t>(rows) * shape.k, 1, 1)),
        w(RandomHalves(shape.type, static_cast<size_t>(shape.n) * shape.k,
                       1 / std::sqrt(static_cast<float>(shape.k)), 2)),
        bias(RandomHalves(shape.type, static_cast<size_t>(shape.n), 1, 3)),
        device_x(HalvesFromFloats(shape.type, x)),
        device_w(HalvesFromFloats(shape.type, w)),
        device_bias(HalvesFromFloats(shape.type, bias)),
        y16(shape.y_is_f32 ? 0 : static_cast<size_t>(rows * y_stride)),
        y32(shape.y_is_f32 ? static_cast<size_t>(rows * y_stride) : 0) {}

  MatmulParams Params() const {
    return {.shape = shape,
            .rows = rows,
            .x = device_x.data(),
            .x_stride = shape.k,
            .w = device_w.data(),
            .bias = shape.bias ? device_bias.data() : nullptr,
            .y = shape.y_is_f32 ? static_cast<void*>(y32.data()) : y16.data(),
            .y_stride = y_stride};
  }

  void Check() const {
    const std::vector<float> y =
        shape.y_is_f32 ? y32.ToHost() : FloatsFromHalves(shape.type, y16.ToHost());
    std::vector<float> want;
    std::vector<float> got;
    for (int32_t m = 0; m < rows; ++m) {
      for (int32_t i = 0; i < y_stride; ++i) {
        const float value = y[static_cast<size_t>(m) * y_stride + i];
        if (i >= shape.n) {
          ASSERT_TRUE(std::isnan(value)) << "wrote between rows";
          continue;
        }
        double sum = shape.bias ? bias[static_cast<size_t>(i)] : 0.0;
        for (int32_t j = 0; j < shape.k; ++j) {
          sum += static_cast<double>(x[static_cast<size_t>(m) * shape.k + j]) *
                 w[static_cast<size_t>(i) * shape.k + j];
        }
        want.push_back(static_cast<float>(sum));
        got.push_back(value);
      }
    }
    EXPECT_LT(RelativeError(want, got), HalfTolerance(shape.type))
        << rows << " x " << shape.n << " x " << shape.k;
  }

  MatmulShape shape;
  int32_t rows;
  int64_t y_stride;
  std::vector<float> x;
  std::vector<float> w;
  std::vector<float> bias;
  DeviceArray<uint16_t> device_x;
  DeviceArray<uint16_t> device_w;
  DeviceArray<uint16_t> device_bias;
  DeviceArray<uint16_t> y16;
  DeviceArray<float> y32;
};

TEST(MatmulPlans, EqualTheProductInDouble) {
  SKIP_WITHOUT_GPU();
  const DeviceBytes workspace(size_t{32} << 20);
  for (const bool deterministic : {false, true}) {
    MatmulPlansOptions options = Options(workspace);
    options.library.deterministic = deterministic;
    const std::unique_ptr<MatmulPlans> plans = MatmulPlans::Create(options).value();
    TestStream stream;
    for (const MatmulShape& shape :
         {MatmulShape{.n = 192, .k = 256}, MatmulShape{.n = 200, .k = 136, .bias = true},
          MatmulShape{.n = 320, .k = 512, .type = HalfType::kF16, .bias = true},
          MatmulShape{.n = 1000, .k = 264, .y_is_f32 = true}}) {
      ASSERT_TRUE(
          plans->Prepare(shape, 128, nullptr, std::chrono::milliseconds(300), stream.get()).ok());
      for (const int32_t rows : {1, 16, 100, 300}) {  // 300: a bucket that was not prepared.
        const Data data(shape, rows, 8);
        const absl::Status status = plans->Run(data.Params(), stream.get());
        ASSERT_TRUE(status.ok()) << status;
        stream.Synchronize();
        data.Check();
      }
    }
  }
}

TEST(MatmulPlans, KeepChoicesInAFileAndIgnoreADamagedOne) {
  SKIP_WITHOUT_GPU();
  const DeviceBytes workspace(size_t{32} << 20);
  const std::string path = ::testing::TempDir() + "matmul_plans.jsonl";
  std::filesystem::remove(path);
  const MatmulShape shape = {.n = 256, .k = 512};
  MatmulPlansOptions options = Options(workspace);
  options.cache_path = path;
  TestStream stream;
  {
    const auto plans = MatmulPlans::Create(options).value();
    ASSERT_TRUE(plans->Prepare(shape, 512, nullptr, std::chrono::seconds(2), stream.get()).ok());
    plans->WriteCache();
    EXPECT_EQ(plans->cache().size(), 3u);
  }
  const auto plans = MatmulPlans::Create(options).value();
  EXPECT_EQ(plans->cache().size(), 3u);
  ASSERT_TRUE(plans->Prepare(shape, 512, nullptr, std::chrono::seconds(2), stream.get()).ok());
  const Data data(shape, 77, 0);
  ASSERT_TRUE(plans->Run(data.Params(), stream.get()).ok());
  stream.Synchronize();
  data.Check();
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(MatmulPlans::Create(options).value()->cache().size(), 0u);
}

TEST(MatmulPlans, CanBeCaptured) {
  SKIP_WITHOUT_GPU();
  const DeviceBytes workspace(size_t{32} << 20);
  const auto plans = MatmulPlans::Create(Options(workspace)).value();
  TestStream stream;
  const Data data({.n = 256, .k = 512}, 64, 0);
  ASSERT_TRUE(
      plans->Prepare(data.shape, 64, nullptr, std::chrono::milliseconds(200), stream.get()).ok());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_TRUE(plans->Run(data.Params(), stream.get()).ok());
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
  stream.Synchronize();
  data.Check();
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST(MatmulPlans, RefuseBadArguments) {
  SKIP_WITHOUT_GPU();
  const DeviceBytes workspace(size_t{32} << 20);
  const auto plans = MatmulPlans::Create(Options(workspace)).value();
  TestStream stream;
  const Data data({.n = 64, .k = 64}, 2, 0);
  MatmulParams p = data.Params();
  p.rows = 0;
  EXPECT_TRUE(plans->Run(p, stream.get()).ok());
  p = data.Params();
  p.y = nullptr;
  EXPECT_EQ(plans->Run(p, stream.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plans->Prepare({.n = 64, .k = 12}, 16, nullptr, Duration::zero(), stream.get()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::cuda
