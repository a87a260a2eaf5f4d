// SampleRowCpu gives exactly the reference's token for random rows and parameters; the distribution
// is the softmax (chi-square); and the odd corners of the parameters do what sampling.h says.
#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct alignas(64) Line {
  std::byte bytes[64];
};

std::vector<float> RandomLogits(int32_t vocab, uint32_t seed, float deviation = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> out(static_cast<size_t>(vocab));
  for (float& v : out) v = normal(rng);
  return out;
}

SampleResult Sample(const std::vector<float>& logits, const SampleParams& p) {
  const auto vocab = static_cast<int32_t>(logits.size());
  const size_t lines = SampleScratchBytes(vocab) / 64 + 1;
  std::vector<Line> scratch(lines + 1);
  scratch.back().bytes[0] = std::byte{0x5A};
  // A copy whose neighbours would be noticed: reading past the row would find NaN.
  std::vector<float> guarded = logits;
  guarded.insert(guarded.end(), 32, kNaN);
  SampleResult result;
  SampleRowCpu(guarded.data(), vocab, p, scratch.data(), &result);
  EXPECT_EQ(scratch.back().bytes[0], std::byte{0x5A});
  return result;
}

SampleResult Reference(const std::vector<float>& logits, const SampleParams& p) {
  SampleResult result;
  SampleRowRef(logits.data(), static_cast<int32_t>(logits.size()), p, &result);
  return result;
}

TEST(Philox, HasThePublishedKnownAnswers) {
  const auto check = [](PhiloxBlock counter, uint32_t k0, uint32_t k1, PhiloxBlock expected) {
    const PhiloxBlock actual = Philox4x32(counter, k0, k1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], expected.word[i]);
  };
  check({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  check({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  check({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
        {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(GumbelNoise, IsFiniteAtBothEndsOfTheGeneratorsRange) {
  EXPECT_NEAR(GumbelFromBits(0), -2.811, 1e-2);
  EXPECT_LT(GumbelFromBits(~0u), kGumbelMax);
  EXPECT_GT(GumbelFromBits(~0u), 16.5);
  EXPECT_GT(UniformFromBits(0), 0.0f);
  EXPECT_LT(UniformFromBits(~0u), 1.0f);
}

TEST(Sampling, DrawsTheReferencesTokenForRandomRowsAndParameters) {
  std::mt19937 rng(11);
  const auto pick = [&](std::initializer_list<float> values) {
    return *(values.begin() + rng() % values.size());
  };
  for (int round = 0; round < 3000; ++round) {
    const int32_t vocab = std::vector<int32_t>{1, 2, 31, 32, 33, 300, 517}[rng() % 7];
    auto logits = RandomLogits(vocab, rng(), pick({0.1f, 1, 5, 30}));
    if (rng() % 4 == 0) {  // Ties.
      for (float& v : logits) v = std::round(v);
    }
    const SampleParams p{
        .temperature = pick({0, 0.2f, 0.8f, 1, 2, 100}),
        .top_k = static_cast<int32_t>(pick({-1, 0, 1, 2, 5, 40, 1e6f, 2147483520.0f})),
        .top_p = pick({1, 0.95f, 0.5f, 0.1f, 1e-9f, 0}),
        .min_p = pick({0, 0.01f, 0.3f, 1}),
        .noise = {.seed = rng() * uint64_t{0x100000001},
                  .sample_index = static_cast<uint32_t>(rng() % 3),
                  .position = static_cast<uint32_t>(rng() % 5000)},
        .logprobs = rng() % 2 == 0,
        .num_top_logprobs = static_cast<int32_t>(pick({0, 0, 1, 5, 20}))};
    const SampleResult expected = Reference(logits, p);
    const SampleResult actual = Sample(logits, p);
    ASSERT_EQ(actual.token, expected.token) << "round " << round << " vocabulary " << vocab;
    ASSERT_TRUE(actual.finite);
    ASSERT_NEAR(actual.logprob, expected.logprob, 1e-5 * (1 + std::abs(expected.logprob)));
    ASSERT_EQ(actual.num_top_logprobs, expected.num_top_logprobs);
    for (int i = 0; i < expected.num_top_logprobs; ++i) {
      ASSERT_EQ(actual.top_ids[i], expected.top_ids[i]);
      ASSERT_NEAR(actual.top_logprobs[i], expected.top_logprobs[i],
                  1e-5 * (1 + std::abs(expected.top_logprobs[i])));
    }
  }
}

// Pearson's statistic of `draws` against `probability`, cells of expectation below 5 merged.
double ChiSquare(const std::map<int32_t, int>& counts, const std::vector<double>& probability,
                 int draws, int* degrees) {
  double statistic = 0;
  double rest_expected = 0;
  double rest_observed = 0;
  *degrees = -1;
  for (size_t t = 0; t < probability.size(); ++t) {
    const auto it = counts.find(static_cast<int32_t>(t));
    const double observed = it == counts.end() ? 0 : it->second;
    const double expected = probability[t] * draws;
    if (expected < 5) {
      rest_expected += expected;
      rest_observed += observed;
      continue;
    }
    statistic += (observed - expected) * (observed - expected) / expected;
    ++*degrees;
  }
  if (rest_expected > 1) {
    statistic += (rest_observed - rest_expected) * (rest_observed - rest_expected) / rest_expected;
    ++*degrees;
  }
  return statistic;
}

// Draws over positions, or over seeds, and compares with the exact probabilities of the filtered
// softmax. The bound is the mean plus five standard deviations of the statistic.
void ExpectDistribution(const std::vector<float>& logits, SampleParams p,
                        const std::vector<double>& probability, bool over_seeds) {
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) {
    if (over_seeds) {
      p.noise.seed = static_cast<uint64_t>(i);
    } else {
      p.noise.position = static_cast<uint32_t>(i);
    }
    ++counts[Sample(logits, p).token];
  }
  for (const auto& [token, count] : counts) {
    EXPECT_GT(probability[static_cast<size_t>(token)], 0.0) << token;
  }
  int degrees = 0;
  const double statistic = ChiSquare(counts, probability, kDraws, &degrees);
  ASSERT_GE(degrees, 1);
  EXPECT_LT(statistic, degrees + 5 * std::sqrt(2.0 * degrees));
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out;
  double sum = 0;
  for (const float v : logits) {
    out.push_back(std::exp((v - maximum) / temperature));
    sum += out.back();
  }
  for (double& v : out) v /= sum;
  return out;
}

TEST(Sampling, FollowsTheSoftmaxOverPositionsAndOverSeeds) {
  const auto logits = RandomLogits(100, 21, 1.5f);
  for (const bool over_seeds : {false, true}) {
    ExpectDistribution(logits, {.temperature = 1, .noise = {.seed = 5}}, Softmax(logits, 1),
                       over_seeds);
    ExpectDistribution(logits, {.temperature = 0.5f, .noise = {.seed = 6}}, Softmax(logits, 0.5),
                       over_seeds);
  }
}

TEST(Sampling, FollowsTheRenormalisedSoftmaxWithTopK) {
  const auto logits = RandomLogits(60, 22, 1);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  auto probability = Softmax(logits, 1);
  double sum = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (logits[t] < sorted[7]) probability[t] = 0;
    sum += probability[t];
  }
  for (double& v : probability) v /= sum;
  ExpectDistribution(logits, {.temperature = 1, .top_k = 8, .noise = {.seed = 9}}, probability,
                     false);
}

TEST(Sampling, SmallTemperaturesAreGreedyAndDoNotOverflow) {
  const auto logits = RandomLogits(257, 23, 10);
  const int32_t greedy = Sample(logits, {}).token;
  for (const float t :
       {1e-3f, 1e-4f, 1e-5f, 1e-8f, 1e-30f, FLT_TRUE_MIN, static_cast<float>(5e-324)}) {
    const SampleResult r = Sample(logits, {.temperature = t, .noise = {.seed = 1}});
    EXPECT_EQ(r.token, greedy) << t;
    EXPECT_TRUE(r.finite);
  }
  // Logits so large that logit / temperature would overflow.
  std::vector<float> huge(50, -3e38f);
  huge[17] = 3e38f;
  huge[18] = 2.9e38f;
  EXPECT_EQ(Sample(huge, {.temperature = 0.01f, .logprobs = true}).token, 17);
}

TEST(Sampling, DegenerateFiltersKeepTheBestTokenOrAreOff) {
  const auto logits = RandomLogits(129, 24, 2);
  const int32_t greedy = Sample(logits, {}).token;
  for (uint32_t position = 0; position < 200; ++position) {
    const NoiseKey noise{.seed = 3, .position = position};
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_k = 1, .noise = noise}).token, greedy);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0, .noise = noise}).token, greedy);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 1e-9f, .noise = noise}).token, greedy);
    EXPECT_EQ(Sample(logits, {.temperature = 1, .min_p = 1, .noise = noise}).token, greedy);
    const int32_t free = Sample(logits, {.temperature = 1, .noise = noise}).token;
    for (const int32_t off : {-1, 0, 129, 130, 9999999, INT32_MAX}) {
      EXPECT_EQ(Sample(logits, {.temperature = 1, .top_k = off, .noise = noise}).token, free);
    }
  }
}

TEST(Sampling, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(2.0f), std::log(1.0f), std::log(0.5f),
                                     std::log(0.5f)};
  const auto support = [&](float top_p) {
    std::set<int32_t> seen;
    for (uint32_t i = 0; i < 500; ++i) {
      seen.insert(
          Sample(logits, {.temperature = 1, .top_p = top_p, .noise = {.seed = 1, .position = i}})
              .token);
    }
    return seen;
  };
  EXPECT_EQ(support(0.4f), (std::set<int32_t>{0}));
  EXPECT_EQ(support(0.6f), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(support(0.8f), (std::set<int32_t>{0, 1, 2}));  // The lower id of the tie.
  EXPECT_EQ(support(0.9f), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(Sampling, RowsWithANaNOrAnInfinityAreReported) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    for (const size_t at : {0u, 7u, 8u, 39u}) {
      auto logits = RandomLogits(40, 25);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        const SampleResult r =
            Sample(logits, {.temperature = temperature, .logprobs = true, .num_top_logprobs = 5});
        EXPECT_FALSE(r.finite);
        EXPECT_TRUE(std::isfinite(r.logprob));
        EXPECT_EQ(r.finite, Reference(logits, {.temperature = temperature}).finite);
      }
    }
  }
}

TEST(Sampling, LogprobsAreFiniteWhateverTheFiltersRemove) {
  auto logits = RandomLogits(64, 26, 5);
  logits[3] = -3.4e38f;
  logits[4] = 3.4e38f;
  const SampleResult r = Sample(logits, {.temperature = 1, .top_k = 1, .num_top_logprobs = 20});
  EXPECT_EQ(r.num_top_logprobs, 20);
  EXPECT_EQ(r.token, 4);
  EXPECT_EQ(r.logprob, 0.0f);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(std::isfinite(r.top_logprobs[i]));
  // Fewer tokens than asked for.
  EXPECT_EQ(Sample({1.0f, 2.0f}, {.num_top_logprobs = 20}).num_top_logprobs, 2);
}

TEST(Sampling, NoiseDependsOnEveryPartOfItsKey) {
  const std::vector<float> flat(4096, 0.0f);
  const auto draw = [&](uint64_t seed, uint32_t sample, uint32_t position) {
    return Sample(flat, {.temperature = 1,
                         .noise = {.seed = seed, .sample_index = sample, .position = position}})
        .token;
  };
  const std::set<int32_t> drawn = {draw(1, 0, 10),
                                   draw(2, 0, 10),
                                   draw(1, 1, 10),
                                   draw(1, 0, 11),
                                   draw(uint64_t{1} << 32, 0, 10),
                                   draw(uint64_t{1} << 63, 0, 10)};
  EXPECT_EQ(drawn.size(), 6u);
  EXPECT_EQ(draw(1, 0, 10), draw(1, 0, 10));
}

}  // namespace
}  // namespace baton::kernels
