// SampleCuda draws exactly the token of the CPU code for random rows and parameters, whatever else
// is in the batch; log-probabilities agree within rounding; a row that is not finite is reported
// alone.
#include "kernels/sampling/sampling_cuda.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/launch/cuda_testing.h"
#include "kernels/sampling/sampling.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::TestStream;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct alignas(64) Line {
  std::byte bytes[64];
};

struct Batch {
  int32_t vocab = 0;
  int64_t stride = 0;
  std::vector<float> logits;  // [rows, stride]; columns from vocab on are NaN.
  std::vector<SampleParams> params;

  size_t rows() const { return params.size(); }
  float* Row(size_t r) { return logits.data() + r * static_cast<size_t>(stride); }
  const float* Row(size_t r) const { return logits.data() + r * static_cast<size_t>(stride); }
};

struct Outputs {
  std::vector<SampleResult> results;
  std::vector<int32_t> last_samples;
};

Outputs RunOnGpu(const Batch& batch) {
  const TestStream stream;
  const DeviceArray<float> logits(batch.logits);
  const DeviceArray<SampleParams> params(batch.params);
  const DeviceArray<SampleResult> results(batch.rows());
  const DeviceArray<int32_t> last_samples(batch.rows());
  const KernelStatus status = SampleCuda({.logits = logits.data(),
                                          .params = params.data(),
                                          .results = results.data(),
                                          .last_samples = last_samples.data(),
                                          .rows = static_cast<int64_t>(batch.rows()),
                                          .stride = batch.stride,
                                          .vocab = batch.vocab},
                                         stream.get(), LaunchOrder::kAfter);
  EXPECT_EQ(status, KernelStatus::kOk) << KernelStatusName(status);
  stream.Synchronize();
  EXPECT_TRUE(results.GuardsIntact() && last_samples.GuardsIntact());
  return {results.ToHost(), last_samples.ToHost()};
}

SampleResult Expected(const Batch& batch, size_t row, bool reference) {
  SampleResult result;
  if (reference) {
    SampleRowRef(batch.Row(row), batch.vocab, batch.params[row], &result);
  } else {
    std::vector<Line> scratch(SampleScratchBytes(batch.vocab) / 64 + 1);
    SampleRowCpu(batch.Row(row), batch.vocab, batch.params[row], scratch.data(), &result);
  }
  return result;
}

void ExpectEqual(const SampleResult& actual, const SampleResult& expected, const Batch& batch,
                 size_t row) {
  const SampleParams& p = batch.params[row];
  SCOPED_TRACE(::testing::Message()
               << "row " << row << " vocabulary " << batch.vocab << " temperature " << p.temperature
               << " top_k " << p.top_k << " top_p " << p.top_p << " min_p " << p.min_p);
  ASSERT_EQ(actual.finite, expected.finite);
  ASSERT_EQ(actual.token, expected.token)
      << "logits " << batch.Row(row)[actual.token] << " and " << batch.Row(row)[expected.token];
  const auto near = [](float a, float b) { return std::abs(a - b) <= 1e-5 * (1 + std::abs(b)); };
  ASSERT_TRUE(near(actual.logprob, expected.logprob))
      << actual.logprob << " expected " << expected.logprob;
  ASSERT_EQ(actual.num_top_logprobs, expected.num_top_logprobs);
  for (int i = 0; i < kSampleTopLogprobsMax; ++i) {
    ASSERT_EQ(actual.top_ids[i], expected.top_ids[i]) << "place " << i;
    ASSERT_TRUE(near(actual.top_logprobs[i], expected.top_logprobs[i])) << "place " << i;
  }
}

void ExpectCpuResults(const Batch& batch, bool reference) {
  const Outputs outputs = RunOnGpu(batch);
  for (size_t row = 0; row < batch.rows(); ++row) {
    ExpectEqual(outputs.results[row], Expected(batch, row, reference), batch, row);
    ASSERT_EQ(outputs.last_samples[row], outputs.results[row].token);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

using Rng = std::mt19937_64;

float Pick(Rng& rng, std::initializer_list<float> values) {
  return *(values.begin() + rng() % values.size());
}

SampleParams RandomParams(Rng& rng) {
  return {.temperature = Pick(rng, {0, 0.2f, 0.8f, 1, 2, 100}),
          .top_k = static_cast<int32_t>(Pick(rng, {-1, 0, 0, 1, 2, 5, 40, 1000, 2147483520.0f})),
          .top_p = Pick(rng, {1, 1, 0.999f, 0.95f, 0.5f, 0.1f, 1e-9f, 0}),
          .min_p = Pick(rng, {0, 0, 0.01f, 0.3f, 1}),
          .noise = {.seed = rng(),
                    .sample_index = static_cast<uint32_t>(rng() % 3),
                    .position = static_cast<uint32_t>(rng() % 5000)},
          .logprobs = rng() % 2 == 0,
          .num_top_logprobs = static_cast<int32_t>(Pick(rng, {0, 0, 0, 1, 5, 20}))};
}

// Normal, tied, flat, peaked, wide and signed-zero rows.
void FillRandomRow(Rng& rng, int32_t vocab, float* row) {
  std::normal_distribution<float> normal(0, Pick(rng, {0.01f, 0.3f, 1, 3, 10, 30}));
  for (int32_t i = 0; i < vocab; ++i) row[i] = normal(rng);
  switch (rng() % 8) {
    case 0:
      for (int32_t i = 0; i < vocab; ++i) row[i] = std::round(row[i]);
      break;
    case 1:
      std::fill(row, row + vocab, rng() % 2 == 0 ? 1.25f : -0.0f);
      break;
    case 2:
      row[rng() % static_cast<uint64_t>(vocab)] += 40;
      break;
    case 3:
      for (int32_t i = 0; i < vocab; ++i) row[i] *= 1e30f;
      break;
    case 4:
      for (int32_t i = 0; i < vocab; ++i) row[i] = row[i] > 0 ? 0.0f : -0.0f;
      break;
    default:
      break;
  }
}

Batch RandomBatch(Rng& rng, size_t rows, int32_t vocab, int64_t stride) {
  Batch batch = {.vocab = vocab, .stride = stride, .logits = {}, .params = {}};
  batch.logits.assign(rows * static_cast<size_t>(stride), kNaN);
  for (size_t r = 0; r < rows; ++r) {
    batch.params.push_back(RandomParams(rng));
    FillRandomRow(rng, vocab, batch.Row(r));
  }
  return batch;
}

// So few that racecheck, which takes minutes for the shapes below, can watch.
TEST(SampleCuda, DrawsTheReferencesTokenInTinyShapes) {
  SKIP_WITHOUT_GPU();
  Rng rng(11);
  for (const int32_t vocab : {5, 300}) {
    ExpectCpuResults(RandomBatch(rng, 2, vocab, vocab), true);
    if (HasFatalFailure()) return;
  }
}

TEST(SampleCuda, DrawsTheReferencesTokenInSmallShapes) {
  SKIP_WITHOUT_GPU();
  Rng rng(1);
  for (const int32_t vocab : {1, 2, 3, 4, 5, 31, 32, 33, 300, 517}) {
    ExpectCpuResults(RandomBatch(rng, 7, vocab, vocab + static_cast<int64_t>(rng() % 5)), true);
    if (HasFatalFailure()) return;
  }
}

TEST(SampleCuda, DrawsTheReferencesTokenForRandomRowsAndParameters) {
  SKIP_WITHOUT_GPU();
  Rng rng(2);
  for (const int32_t vocab : {1, 2, 31, 32, 33, 64, 65, 512, 517, 2048, 4099}) {
    for (int round = 0; round < (vocab > 1000 ? 4 : 12); ++round) {
      const int64_t stride = round % 2 == 0 ? (vocab + 3) / 4 * 4 : vocab + 1;
      ExpectCpuResults(RandomBatch(rng, 48, vocab, stride), true);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SampleCuda, DrawsTheCpusTokenFromVocabulariesOfRealModels) {
  SKIP_WITHOUT_GPU();
  Rng rng(3);
  for (const int32_t vocab : {32000, 128256, 151936, 262144}) {
    for (int round = 0; round < 3; ++round) {
      ExpectCpuResults(RandomBatch(rng, 48, vocab, round == 2 ? vocab + 3 : vocab), false);
      if (HasFatalFailure()) return;
    }
    ExpectCpuResults(RandomBatch(rng, 3, vocab, vocab), true);
  }
}

TEST(SampleCuda, DrawsTheCpusTokenWithoutFiltersManyTimes) {
  SKIP_WITHOUT_GPU();
  Rng rng(4);
  Batch batch = RandomBatch(rng, 256, 5003, 5004);
  for (SampleParams& p : batch.params) {
    p.temperature = Pick(rng, {0.3f, 1, 1.5f, 50});
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
  }
  ExpectCpuResults(batch, false);
}

TEST(SampleCuda, ReportsRowsThatAreNotFiniteAlone) {
  SKIP_WITHOUT_GPU();
  Rng rng(5);
  for (const int32_t vocab : {1, 33, 32000}) {
    Batch batch = RandomBatch(rng, 12, vocab, vocab);
    for (size_t r = 0; r < batch.rows(); r += 2) {
      const float bad = Pick(rng, {kNaN, kInfinity, -kInfinity});
      batch.Row(r)[rng() % static_cast<uint64_t>(vocab)] = bad;
    }
    const Outputs outputs = RunOnGpu(batch);
    for (size_t r = 0; r < batch.rows(); ++r) {
      if (r % 2 != 0) {
        ExpectEqual(outputs.results[r], Expected(batch, r, true), batch, r);
        continue;
      }
      EXPECT_FALSE(outputs.results[r].finite) << "row " << r << " vocabulary " << vocab;
      EXPECT_EQ(outputs.results[r].token, 0);
      EXPECT_EQ(outputs.last_samples[r], 0);
    }
  }
}

TEST(SampleCuda, GivesARowTheSameResultInAnyBatchAndEveryTime) {
  SKIP_WITHOUT_GPU();
  Rng rng(6);
  const Batch batch = RandomBatch(rng, 70, 9001, 9004);
  const Outputs together = RunOnGpu(batch);
  for (const size_t r : {size_t{0}, size_t{13}, size_t{69}}) {
    Batch alone = {.vocab = batch.vocab, .stride = batch.stride, .logits = {}, .params = {}};
    alone.logits.assign(batch.Row(r), batch.Row(r) + batch.stride);
    alone.params = {batch.params[r]};
    const SampleResult result = RunOnGpu(alone).results[0];
    EXPECT_EQ(result.token, together.results[r].token);
    EXPECT_EQ(result.logprob, together.results[r].logprob);
  }
  const Outputs again = RunOnGpu(batch);
  for (size_t r = 0; r < batch.rows(); ++r) {
    EXPECT_EQ(again.results[r].token, together.results[r].token);
    EXPECT_EQ(again.results[r].logprob, together.results[r].logprob);
  }
}

TEST(SampleCuda, RefusesWhatItCannotDo) {
  float logits = 0;
  SampleParams params;
  SampleResult result;
  SampleCudaParams p = {
      .logits = &logits, .params = &params, .results = &result, .rows = 0, .stride = 1, .vocab = 1};
  EXPECT_EQ(SampleCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kOk);
  p.vocab = 2;
  EXPECT_EQ(SampleCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p.vocab = kSampleCudaVocabMax + 1;
  p.stride = p.vocab;
  EXPECT_EQ(SampleCuda(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
}

}  // namespace
}  // namespace baton::kernels
