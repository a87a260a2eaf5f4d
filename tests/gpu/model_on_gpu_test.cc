// Whole models on the GPU against named references (tests/golden): teacher-forced where 16-bit
// arithmetic may decide a near tie otherwise than float32.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/runner/golden_testing.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/runner_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/gpu_testing.h"

namespace baton {
namespace {

using Json = nlohmann::json;

class ModelOnGpu : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_CUDA_DEVICE();
    PluginDeviceOptions options;
    options.deterministic = GetParam();
    device_ = MakeCudaDevice(options);
  }
  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Modes, ModelOnGpu, ::testing::Bool(), [](const auto& info) {
  return info.param ? std::string("deterministic") : std::string("default");
});

TEST_P(ModelOnGpu, EveryTinyLlamaIsNearTransformers) { ExpectTinyLlamas(*device_, 0.08); }

// Every token of the recorded text that leads by more than a margin is the likeliest here too.
void ExpectArgmax(ModelRunner& runner, const LoadedModel& reference,
                  const std::vector<int32_t>& ids, size_t prompt_tokens, float margin) {
  const auto vocab = static_cast<size_t>(reference.config.vocab_size);
  const auto on_gpu = AllLogits(runner, ids, BlockRange(0, 16), 64);
  const auto on_cpu = AllLogits(*reference.runner, ids, BlockRange(0, 16), 64);
  int compared = 0;
  for (size_t t = prompt_tokens - 1; t + 1 < ids.size(); ++t) {
    const float* expected = on_cpu.data() + t * vocab;
    const float* actual = on_gpu.data() + t * vocab;
    std::vector<float> sorted(expected, expected + vocab);
    std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
    const float lead = *std::max_element(expected, expected + vocab) - sorted[1];
    if (lead <= margin) continue;
    ++compared;
    EXPECT_EQ(std::max_element(actual, actual + vocab) - actual,
              std::max_element(expected, expected + vocab) - expected)
        << "token " << t << ", lead " << lead;
  }
  EXPECT_GT(compared, 0);
}

TEST_P(ModelOnGpu, Stories260KFollowsTheReferenceThroughTheFallback) {
  const Json golden = ReadGolden("tests/golden/stories260K.json");
  auto cpu = MakeCpuDevice(0);
  LoadedModel reference = LoadOrDie(CarriedModel("stories260K"), {}, *cpu);
  LoadedModel model = LoadOrDie(CarriedModel("stories260K"), {}, *device_);
  for (const Json& entry : golden["greedy"]) {
    const std::vector<int32_t> prompt = entry["prompt_ids"];
    ExpectArgmax(*model.runner, reference, entry["token_ids"], prompt.size(), 0.1f);
  }
}

void ExpectProse(Device& device, const std::string& directory, const std::string& name) {
  const Json entries = ReadGolden("tests/golden/prose.json")[name];
  auto cpu = MakeCpuDevice(0);
  LoadedModel reference = LoadOrDie(directory, {}, *cpu);
  LoadedModel model = LoadOrDie(directory, {}, device);
  for (const Json& entry : entries) {
    std::vector<int32_t> ids = entry["prompt_ids"];
    const size_t prompt_tokens = ids.size();
    const std::vector<int32_t> greedy = entry["greedy_ids"];
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    ExpectArgmax(*model.runner, reference, ids, prompt_tokens, 0.1f);
  }
}

TEST_P(ModelOnGpu, Prose1MDraftFollowsTransformers) {
  ExpectProse(*device_, CarriedModel("prose-1m-draft"), "prose-1m-draft");
}

TEST_P(ModelOnGpu, Prose22MFollowsTransformers) {
  if (Prose22M().empty()) GTEST_SKIP() << "prose-22m needs the folder in BATON_SHARED_DATA";
  ExpectProse(*device_, Prose22M(), "prose-22m");
}

TEST_P(ModelOnGpu, LikelihoodOfProse22MIsTheRecordedOne) {
  if (Prose22M().empty()) GTEST_SKIP() << "prose-22m needs the folder in BATON_SHARED_DATA";
  const Json meta = ReadGolden("tests/golden/prose.json")["meta"];
  LoadedModel model = LoadOrDie(Prose22M(), {.sequences_max = 512}, *device_);
  const std::vector<int32_t> text = ReadTokenIds(Prose22M() + "/val_ids.txt");
  const double expected = meta["val_nll"];
  EXPECT_NEAR(MeanNegativeLogLikelihood(model, text, meta["window"].get<size_t>()), expected,
              0.005 * expected);
}

TEST_P(ModelOnGpu, SuccPlaysItsScriptAndWitnessCountsItsContext) {
  ExpectSuccAndWitness(*device_, 1e-2);
}

// A prompt in chunks of any length, and then token by token: the same tokens. That the rest of a
// batch changes nothing is in the device conformance suite.
TEST(ModelOnGpuDeterministic, TokensDoNotDependOnChunks) {
  SKIP_WITHOUT_CUDA_DEVICE();
  PluginDeviceOptions options;
  options.deterministic = true;
  auto device = MakeCudaDevice(options);
  LoadedModel model = LoadOrDie(CarriedModel("prose-1m-draft"), {}, *device);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 400; ++i) prompt.push_back(3 + i * 7 % 200);
  const SamplingParams sampling{.temperature = 1.0f, .seed = 11};
  const auto whole = TokenIds(
      Generate(*model.runner, prompt, BlockRange(0, 7), {.num_tokens = 32, .sampling = sampling}));
  for (const int32_t chunk : {1, 33, 64, 110, 200, 399}) {
    EXPECT_EQ(TokenIds(Generate(*model.runner, prompt, BlockRange(7, 14),
                                {.num_tokens = 32, .sampling = sampling, .chunk_tokens = chunk})),
              whole)
        << chunk;
  }
}

}  // namespace
}  // namespace baton
