// AddNormCuda against AddNormRef: the residual has the exact sum, the output is within rounding;
// rows do not depend on their batch.
#include "kernels/norm/norm_cuda.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/launch/cuda_testing.h"
#include "kernels/norm/norm.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::FloatsFromHalves;
using testing::HalfTolerance;
using testing::HalvesFromFloats;
using testing::RandomHalves;
using testing::RelativeError;
using testing::TestStream;

struct Case {
  int64_t rows = 0;
  int64_t cols = 0;
  HalfType type = HalfType::kBF16;
  bool delta = true;
  bool in_place = false;  // out is delta.
  int64_t shift = 0;      // Elements by which all arrays start off alignment.
};

std::vector<float> RandomFloats(size_t count, float scale, uint64_t seed) {
  std::vector<float> values = RandomHalves(HalfType::kF16, count, scale, seed);
  for (size_t i = 0; i < count; ++i) values[i] += 1e-4f * static_cast<float>(i % 7);
  return values;
}

struct Result {
  std::vector<float> residual;
  std::vector<float> out;
};

template <typename T>
std::vector<T> Shifted(const std::vector<T>& values, int64_t shift) {
  std::vector<T> shifted(static_cast<size_t>(shift));
  shifted.insert(shifted.end(), values.begin(), values.end());
  return shifted;
}

Result RunOnGpu(const Case& c, const std::vector<float>& residual, const std::vector<float>& delta,
                const std::vector<float>& gamma, float epsilon) {
  const TestStream stream;
  const DeviceArray<float> device_residual(Shifted(residual, c.shift));
  const DeviceArray<uint16_t> device_delta(Shifted(HalvesFromFloats(c.type, delta), c.shift));
  const DeviceArray<float> device_gamma(Shifted(gamma, c.shift));
  const DeviceArray<uint16_t> device_out(delta.size() + static_cast<size_t>(c.shift));
  uint16_t* out = c.in_place ? device_delta.data() : device_out.data();
  const KernelStatus status =
      AddNormCuda({.delta = c.delta ? device_delta.data() + c.shift : nullptr,
                   .residual = device_residual.data() + c.shift,
                   .gamma = device_gamma.data() + c.shift,
                   .out = out + c.shift,
                   .rows = c.rows,
                   .cols = c.cols,
                   .epsilon = epsilon,
                   .type = c.type},
                  stream.get(), LaunchOrder::kOverlapped);
  EXPECT_EQ(status, KernelStatus::kOk) << KernelStatusName(status);
  stream.Synchronize();
  Result result = {
      device_residual.ToHost(),
      FloatsFromHalves(c.type, c.in_place ? device_delta.ToHost() : device_out.ToHost())};
  result.residual.erase(result.residual.begin(), result.residual.begin() + c.shift);
  result.out.erase(result.out.begin(), result.out.begin() + c.shift);
  return result;
}

void Check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.cols << " delta " << c.delta
                                    << " in place " << c.in_place << " shift " << c.shift);
  const auto count = static_cast<size_t>(c.rows * c.cols);
  const std::vector<float> residual = RandomFloats(count, 2, 1);
  const std::vector<float> delta = RandomHalves(c.type, count, 0.5f, 2);
  const std::vector<float> gamma = RandomFloats(static_cast<size_t>(c.cols), 1, 3);
  constexpr float kEpsilon = 1e-5f;
  const Result actual = RunOnGpu(c, residual, delta, gamma, kEpsilon);
  std::vector<float> expected_residual = residual;
  std::vector<float> expected(count);
  AddNormRef({.delta = c.delta ? delta.data() : nullptr,
              .residual = expected_residual.data(),
              .gamma = gamma.data(),
              .out = expected.data(),
              .cols = c.cols,
              .epsilon = kEpsilon},
             0, c.rows);
  EXPECT_EQ(actual.residual, expected_residual);
  EXPECT_LE(RelativeError(expected, actual.out), HalfTolerance(c.type));
}

TEST(AddNormCuda, AgreesWithTheReferenceInSmallShapes) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const int64_t cols : {1, 7, 8, 24, 33, 256, 1000}) {
      for (const int64_t rows : {0, 1, 3}) {
        Check({.rows = rows, .cols = cols, .type = type});
        Check({.rows = rows, .cols = cols, .type = type, .delta = false});
      }
    }
  }
}

TEST(AddNormCuda, AgreesWithTheReference) {
  SKIP_WITHOUT_GPU();
  for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
    for (const int64_t cols : {2048, 3001, 4096, 5120, 8192, 8200, 12288, 16376, 16381, 16384}) {
      Check({.rows = 5, .cols = cols, .type = type});
      Check({.rows = 2, .cols = cols, .type = type, .delta = false});
      Check({.rows = 2, .cols = cols, .type = type, .in_place = true});
      Check({.rows = 2, .cols = cols, .type = type, .shift = 1});
    }
    Check({.rows = 300, .cols = 4096, .type = type});
  }
}

TEST(AddNormCuda, GivesARowTheSameBitsInAnyBatch) {
  SKIP_WITHOUT_GPU();
  for (const int64_t cols : {4096, 1003}) {
    const auto count = static_cast<size_t>(600 * cols);
    const std::vector<float> residual = RandomFloats(count, 2, 4);
    const std::vector<float> delta = RandomHalves(HalfType::kBF16, count, 1, 5);
    const std::vector<float> gamma = RandomFloats(static_cast<size_t>(cols), 1, 6);
    const Result all = RunOnGpu({.rows = 600, .cols = cols}, residual, delta, gamma, 1e-6f);
    const size_t last = count - static_cast<size_t>(cols);
    const Result one = RunOnGpu(
        {.rows = 1, .cols = cols}, {residual.begin() + static_cast<int64_t>(last), residual.end()},
        {delta.begin() + static_cast<int64_t>(last), delta.end()}, gamma, 1e-6f);
    for (size_t c = 0; c < one.out.size(); ++c) ASSERT_EQ(one.out[c], all.out[last + c]);
  }
}

TEST(AddNormCuda, RefusesWhatItCannotDo) {
  float x = 0;
  AddNormCudaParams p = {.residual = &x, .gamma = &x, .out = &x, .rows = 1, .cols = 0};
  EXPECT_EQ(AddNormCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p.cols = kAddNormColsMax + 1;
  EXPECT_EQ(AddNormCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.cols = 1;
  p.out = nullptr;
  EXPECT_EQ(AddNormCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels
