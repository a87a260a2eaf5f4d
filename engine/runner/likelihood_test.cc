// Mean negative log-likelihood of prose-22m on held-out text against the recorded value: 1.4 TFLOP,
// so apart from the quick golden tests.
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
  const std::vector<int32_t> text = ReadTokenIds(Prose22M() + "/val_ids.txt");
  const auto window = meta["window"].get<size_t>();
  ASSERT_EQ(text.size(), window * meta["val_windows"].get<size_t>());
  const double expected = meta["val_nll"];
  EXPECT_NEAR(MeanNegativeLogLikelihood(model, text, window), expected, 0.001 * expected);
}

}  // namespace
}  // namespace baton
