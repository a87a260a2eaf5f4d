// Frequencies against tests/golden/tiny_llama/rope_frequencies.json, which says what computed it
// (tools/make_golden_logits.py), for the scalings of released models and for the edges.
#include "engine/weights/rope_frequencies.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/weights_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

// transformers computes in float32.
constexpr double kRelativeError = 3e-6;

TEST(RopeFrequencies, AgreeWithTheGoldenFile) {
  const auto text = ReadTextFile("tests/golden/tiny_llama/rope_frequencies.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto golden = nlohmann::json::parse(*text);
  ASSERT_GE(golden["cases"].size(), 9u);
  for (const auto& item : golden["cases"]) {
    const std::string name = item["name"];
    const auto config =
        ParseModelConfig(TinyConfig({{"rope_parameters", item["rope_parameters"].dump()},
                                     {"rope_theta", ""},
                                     {"max_position_embeddings",
                                      absl::StrCat(item["max_position_embeddings"].get<int>())}}),
                         std::nullopt);
    ASSERT_TRUE(config.ok()) << name << ": " << config.status();
    const RopeFrequencies got =
        ComputeRopeFrequencies(item["head_dim"].get<int>(), config->rope_theta, config->rope);
    const auto& want = item["inverse_frequencies"];
    ASSERT_EQ(got.inverse.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got.inverse[i] / want[i].get<double>(), 1.0, kRelativeError) << name << " " << i;
    }
    EXPECT_NEAR(got.attention_scaling / item["attention_scaling"].get<double>(), 1.0,
                kRelativeError)
        << name;
  }
}

TEST(RopeFrequencies, PlainOnesArePowersOfTheta) {
  const RopeFrequencies plain = ComputeRopeFrequencies(8, 10000.0, {});
  ASSERT_EQ(plain.inverse.size(), 4u);
  EXPECT_DOUBLE_EQ(plain.inverse[0], 1.0);
  EXPECT_DOUBLE_EQ(plain.inverse[1], 0.1);
  EXPECT_DOUBLE_EQ(plain.inverse[2], 0.01);
  EXPECT_DOUBLE_EQ(plain.inverse[3], 0.001);
  EXPECT_EQ(plain.attention_scaling, 1.0);
}

TEST(RopeFrequencies, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::kLlama3;
  scaling.factor = 8;
  scaling.original_max_position_embeddings = 8192;
  const RopeFrequencies plain = ComputeRopeFrequencies(128, 500000.0, {});
  const RopeFrequencies scaled = ComputeRopeFrequencies(128, 500000.0, scaling);
  for (size_t i = 0; i < plain.inverse.size(); ++i) {
    const double wavelength = 2 * M_PI / plain.inverse[i];
    const double ratio = plain.inverse[i] / scaled.inverse[i];
    if (wavelength < 8192 / 4.0) {
      EXPECT_DOUBLE_EQ(ratio, 1.0) << i;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(ratio, 8.0) << i;
    } else {
      EXPECT_GT(ratio, 1.0) << i;
      EXPECT_LT(ratio, 8.0) << i;
    }
  }
}

TEST(RopeFrequencies, YarnScalesAttentionByItsFactorUnlessTold) {
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::kYarn;
  scaling.factor = 4;
  scaling.original_max_position_embeddings = 4096;
  const auto attention = [&] { return ComputeRopeFrequencies(64, 1e4, scaling).attention_scaling; };
  EXPECT_DOUBLE_EQ(attention(), 0.1 * std::log(4.0) + 1);
  scaling.mscale = 2.0;
  EXPECT_DOUBLE_EQ(attention(), 0.1 * std::log(4.0) + 1);  // needs both
  scaling.mscale_all_dim = 0.5;
  EXPECT_DOUBLE_EQ(attention(), (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  scaling.attention_factor = 0.75;
  EXPECT_DOUBLE_EQ(attention(), 0.75);
}

TEST(RopeFrequenciesDeathTest, OddHeadDimIsAProgrammersError) {
  EXPECT_DEATH(ComputeRopeFrequencies(7, 10000.0, {}), "head_dim");
}

}  // namespace
}  // namespace baton
