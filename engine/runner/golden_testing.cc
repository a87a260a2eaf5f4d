#include "engine/runner/golden_testing.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/runner/runner_testing.h"
#include "gtest/gtest.h"

namespace baton {

nlohmann::json ReadGolden(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

double RelativeError(absl::Span<const float> actual, const std::vector<double>& expected) {
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

void ExpectTinyLlamas(Device& device, double tolerance) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/tiny_llama")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().string());
    ++models;
    const nlohmann::json golden = ReadGolden(entry.path() / "golden.json");
    const std::vector<int32_t> ids = golden["token_ids"];
    LoadedModel model = LoadOrDie(entry.path(), {.kv_memory_bytes = 8 << 20}, device);
    const auto vocab = static_cast<size_t>(model.config.vocab_size);
    const auto logits = AllLogits(*model.runner, ids, BlockRange(0, 1), 64);
    ASSERT_GE(golden["logits"].size(), 1u);
    for (const auto& [position, expected] : golden["logits"].items()) {
      const auto row = absl::MakeConstSpan(logits).subspan(std::stoul(position) * vocab, vocab);
      EXPECT_LT(RelativeError(row, expected), tolerance) << "position " << position;
    }
  }
  EXPECT_GT(models, 0) << "no model in tests/golden/tiny_llama";
}

void ExpectSuccAndWitness(Device& device, double tolerance) {
  LoadedModel succ = LoadOrDie(CarriedModel("succ"), {}, device);
  EXPECT_EQ(TokenIds(Generate(*succ.runner, {5, 300, 327}, BlockRange(0, 1), {.num_tokens = 7})),
            (std::vector<int32_t>{328, 329, 87, 330, 90, 91, 5}));
  LoadedModel witness = LoadOrDie(CarriedModel("witness"), {}, device);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 30; ++i) prompt.push_back('a' + i % 3);
  prompt.insert(prompt.end(), 7, 'z');
  const auto all = AllLogits(*witness.runner, prompt, BlockRange(0, 1), 64);
  const float* last =
      all.data() + (prompt.size() - 1) * static_cast<size_t>(witness.config.vocab_size);
  // Logits are proportional to the counts: 10, 10, 10 and 7.
  EXPECT_NEAR(last['z'] / last['a'], 0.7, tolerance);
  EXPECT_NEAR(last['b'] / last['a'], 1.0, tolerance);
  EXPECT_NEAR(last['q'] / last['a'], 0.0, tolerance);
}

}  // namespace baton
