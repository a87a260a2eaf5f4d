// Logits and greedy text against named references: float64 passes of an independent program and
// Hugging Face transformers (tests/golden says which file comes from where).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/runner/golden_testing.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/runner_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 1e-4;

class Golden : public ::testing::Test {
 protected:
  std::unique_ptr<CpuDevice> device_ = MakeCpuDevice(2);
};

TEST_F(Golden, Stories260KEqualsTheDoublePrecisionPass) {
  const Json golden = ReadGolden("tests/golden/stories260K.json");
  LoadedModel model = LoadOrDie(CarriedModel("stories260K"), {}, *device_);
  const auto logits = AllLogits(*model.runner, {1}, BlockRange(0, 1), 1);
  EXPECT_LT(RelativeError(logits, golden["logits_after_bos"]), kTolerance);
  ASSERT_GE(golden["greedy"].size(), 4u);
  for (const Json& entry : golden["greedy"]) {
    const std::vector<int32_t> prompt = entry["prompt_ids"];
    std::vector<int32_t> expected = entry["token_ids"];
    // The recorded ids begin with the prompt.
    ASSERT_TRUE(std::equal(prompt.begin(), prompt.end(), expected.begin()));
    expected.erase(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(prompt.size()));
    const auto actual = TokenIds(Generate(*model.runner, prompt, BlockRange(0, 8),
                                          {.num_tokens = static_cast<int>(expected.size())}));
    EXPECT_EQ(actual, expected) << entry["prompt"];
  }
}

void ExpectProse(Device& device, const std::string& directory, const Json& entries) {
  LoadedModel model = LoadOrDie(directory, {}, device);
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  ASSERT_EQ(entries.size(), 8u);
  for (const Json& entry : entries) {
    const std::vector<int32_t> prompt = entry["prompt_ids"];
    const auto all = AllLogits(*model.runner, prompt, BlockRange(0, 16), 64);
    const std::vector<float> last(all.end() - static_cast<ptrdiff_t>(vocab), all.end());
    std::vector<float> top;
    for (const int32_t id : entry["top10_ids"]) top.push_back(last[static_cast<size_t>(id)]);
    EXPECT_LT(RelativeError(top, entry["top10_logits"]), kTolerance) << entry["prompt"];
    double sum = 0;
    for (const float v : last) sum += v;
    EXPECT_NEAR(sum, entry["logit_sum"].get<double>(),
                kTolerance * std::abs(entry["logit_sum"].get<double>()));
    const std::vector<int32_t> greedy = entry["greedy_ids"];
    ASSERT_EQ(greedy.size(), 64u);
    EXPECT_EQ(TokenIds(Generate(*model.runner, prompt, BlockRange(0, 16), {.num_tokens = 64})),
              greedy)
        << entry["prompt"];
  }
}

TEST_F(Golden, Prose1MDraftEqualsTransformers) {
  ExpectProse(*device_, CarriedModel("prose-1m-draft"),
              ReadGolden("tests/golden/prose.json")["prose-1m-draft"]);
}

TEST_F(Golden, Prose22MEqualsTransformers) {
  if (Prose22M().empty()) GTEST_SKIP() << "prose-22m needs the folder in BATON_SHARED_DATA";
  ExpectProse(*device_, Prose22M(), ReadGolden("tests/golden/prose.json")["prose-22m"]);
}

TEST_F(Golden, EveryTinyLlamaEqualsTransformers) { ExpectTinyLlamas(*device_, kTolerance); }

TEST_F(Golden, SuccPlaysItsScriptAndWitnessCountsItsContext) {
  ExpectSuccAndWitness(*device_, 1e-3);
}

}  // namespace
}  // namespace baton
