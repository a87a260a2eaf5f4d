// Logits and greedy text against named references: float64 passes of an independent program and
// Hugging Face transformers (tests/golden says which file comes from where).
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"
#include "engine/runner/runner_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 1e-4;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return Json::parse(file);
}

// Largest difference, relative to the largest magnitude of the expected row.
double RelativeError(const std::vector<float>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(actual[i] - expected[i]));
    if (!std::isfinite(actual[i])) return INFINITY;
  }
  return difference / largest;
}

class Golden : public ::testing::Test {
 protected:
  std::unique_ptr<CpuDevice> device_ = MakeCpuDevice(2);
};

TEST_F(Golden, Stories260KEqualsTheDoublePrecisionPass) {
  const Json golden = ReadJson("tests/golden/stories260K.json");
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
              ReadJson("tests/golden/prose.json")["prose-1m-draft"]);
}

TEST_F(Golden, Prose22MEqualsTransformers) {
  if (Prose22M().empty()) GTEST_SKIP() << "prose-22m needs the folder in BATON_SHARED_DATA";
  ExpectProse(*device_, Prose22M(), ReadJson("tests/golden/prose.json")["prose-22m"]);
}

TEST_F(Golden, EveryTinyLlamaEqualsTransformers) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/tiny_llama")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().string());
    ++models;
    const Json golden = ReadJson(entry.path() / "golden.json");
    const std::vector<int32_t> ids = golden["token_ids"];
    LoadedModel model = LoadOrDie(entry.path(), {.kv_memory_bytes = 8 << 20}, *device_);
    const auto vocab = static_cast<size_t>(model.config.vocab_size);
    const auto logits = AllLogits(*model.runner, ids, BlockRange(0, 1), 64);
    ASSERT_GE(golden["logits"].size(), 1u);
    for (const auto& [position, expected] : golden["logits"].items()) {
      const auto first = logits.begin() + static_cast<ptrdiff_t>(std::stoul(position) * vocab);
      EXPECT_LT(RelativeError({first, first + static_cast<ptrdiff_t>(vocab)}, expected), kTolerance)
          << "position " << position;
    }
  }
  EXPECT_GT(models, 0) << "no model in tests/golden/tiny_llama";
}

TEST_F(Golden, SuccPlaysItsScriptAndWitnessCountsItsContext) {
  // models/README.md describes both.
  LoadedModel succ = LoadOrDie(CarriedModel("succ"), {}, *device_);
  EXPECT_EQ(TokenIds(Generate(*succ.runner, {5, 300, 327}, BlockRange(0, 1), {.num_tokens = 7})),
            (std::vector<int32_t>{328, 329, 87, 330, 90, 91, 5}));
  LoadedModel witness = LoadOrDie(CarriedModel("witness"), {}, *device_);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 30; ++i) prompt.push_back('a' + i % 3);
  prompt.insert(prompt.end(), 7, 'z');
  const auto all = AllLogits(*witness.runner, prompt, BlockRange(0, 1), 64);
  const float* last =
      all.data() + (prompt.size() - 1) * static_cast<size_t>(witness.config.vocab_size);
  // Logits are proportional to the counts: 10, 10, 10 and 7.
  EXPECT_NEAR(last['z'] / last['a'], 0.7, 1e-3);
  EXPECT_NEAR(last['b'] / last['a'], 1.0, 1e-3);
  EXPECT_NEAR(last['q'] / last['a'], 0.0, 1e-3);
}

}  // namespace
}  // namespace baton
