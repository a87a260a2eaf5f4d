// Mean negative log-likelihood of prose-22m on held-out text against the recorded value: 1.4 TFLOP,
// so apart from the quick golden tests.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "engine/runner/model_runner.h"
#include "engine/runner/runner_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

TEST(Likelihood, OfProse22MOnHeldOutTextIsTheRecordedOne) {
  if (Prose22M().empty()) GTEST_SKIP() << "prose-22m needs the folder in BATON_SHARED_DATA";
  std::ifstream golden("tests/golden/prose.json");
  const nlohmann::json meta = nlohmann::json::parse(golden)["meta"];
  auto device = MakeCpuDevice(0);
  LoadedModel model = LoadOrDie(Prose22M(), {.sequences_max = 512}, *device);
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  std::ifstream file(Prose22M() + "/val_ids.txt");
  std::vector<int32_t> text;
  for (int32_t id = 0; file >> id;) text.push_back(id);
  const auto window = meta["window"].get<size_t>();
  ASSERT_EQ(text.size(), window * meta["val_windows"].get<size_t>());
  double sum = 0;
  int64_t count = 0;
  for (size_t first = 0; first < text.size(); first += window) {
    const auto begin = text.begin() + static_cast<ptrdiff_t>(first);
    const std::vector<int32_t> ids(begin, begin + static_cast<ptrdiff_t>(window));
    const auto logits = AllLogits(*model.runner, ids, BlockRange(0, 8), 512);
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const float* row = logits.data() + t * vocab;
      const double largest = *std::max_element(row, row + vocab);
      double exponentials = 0;
      for (size_t i = 0; i < vocab; ++i) exponentials += std::exp(row[i] - largest);
      sum += largest + std::log(exponentials) - row[ids[t + 1]];
      ++count;
    }
  }
  const double expected = meta["val_nll"];
  EXPECT_NEAR(sum / static_cast<double>(count), expected, 0.001 * expected);
}

}  // namespace
}  // namespace baton
