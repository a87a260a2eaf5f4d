// Properties of a whole model on the CPU device, with the models that the repository carries: exact
// identity over chunking, batches, threads, block sizes and asynchronous execution; and the errors
// of loading.
#include "engine/runner/model_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/runner/runner_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kStoriesVocab = 512;

std::vector<int32_t> RandomPrompt(size_t n, int32_t vocab, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out;
  for (size_t i = 0; i < n; ++i) {
    out.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
  }
  return out;
}

LoadOptions SmallBlocks() { return {.kv_memory_bytes = 32 << 20, .block_tokens = 16}; }

class StoriesModel : public ::testing::Test {
 protected:
  StoriesModel()
      : device_(MakeCpuDevice(2)),
        model_(LoadOrDie(CarriedModel("stories260K"), SmallBlocks(), *device_)) {}

  std::unique_ptr<CpuDevice> device_;
  LoadedModel model_;
};

TEST_F(StoriesModel, LogitsDoNotDependOnChunkingOrPath) {
  const auto prompt = RandomPrompt(150, kStoriesVocab, 1);
  const auto blocks = BlockRange(3, 13);
  const auto expected = AllLogits(*model_.runner, prompt, blocks, 64);
  for (const int32_t chunk : {1, 3, 16, 33, 50}) {
    EXPECT_EQ(AllLogits(*model_.runner, prompt, blocks, chunk), expected) << chunk;
  }
}

TEST_F(StoriesModel, LogitsDoNotDependOnBlockSizeOrThreads) {
  const auto prompt = RandomPrompt(100, kStoriesVocab, 2);
  const auto expected = AllLogits(*model_.runner, prompt, BlockRange(0, 7), 64);
  for (int threads = 1; threads <= 4; ++threads) {
    auto device = MakeCpuDevice(threads);
    const LoadedModel model = LoadOrDie(CarriedModel("stories260K"),
                                        {.kv_memory_bytes = 8 << 20, .block_tokens = 128}, *device);
    EXPECT_EQ(AllLogits(*model.runner, prompt, BlockRange(2, 3), 64), expected) << threads;
  }
}

TEST_F(StoriesModel, TokensDoNotDependOnTheRestOfTheBatch) {
  const SamplingParams sampling{.temperature = 0.9f, .top_p = 0.95f, .seed = 42};
  const auto prompt = RandomPrompt(37, kStoriesVocab, 3);
  const auto alone = TokenIds(
      Generate(*model_.runner, prompt, BlockRange(0, 6), {.num_tokens = 24, .sampling = sampling}));
  // Fifteen neighbours with other lengths, seeds and temperatures; some join late, some leave.
  StepBatch batch;
  std::vector<int32_t> actual;
  for (int step = 0; step < 24; ++step) {
    if (step == 0) {
      batch.sequences.push_back({.token_ids = prompt,
                                 .block_table = BlockRange(0, 6),
                                 .sample = true,
                                 .sampling = sampling});
    }
    if (step % 2 == 0 && batch.sequences.size() < 16) {
      const auto i = static_cast<int32_t>(batch.sequences.size());
      SequenceStep neighbour{
          .token_ids = RandomPrompt(static_cast<size_t>(5 + 11 * i), kStoriesVocab, 100u + i),
          .block_table = BlockRange(10 * i, 10 * i + 14),
          .sample = true,
          .sampling = {.temperature = i % 3 == 0 ? 0.0f : 1.3f,
                       .seed = static_cast<uint64_t>(i) * 7919}};
      neighbour.block_table = BlockRange(20 + 14 * i, 34 + 14 * i);
      batch.sequences.insert(batch.sequences.begin() + i / 2, neighbour);
    }
    const size_t ours = static_cast<size_t>(
        std::find_if(batch.sequences.begin(), batch.sequences.end(),
                     [](const SequenceStep& s) { return s.block_table[0] == BlockId(0); }) -
        batch.sequences.begin());
    const StepResult result = RunStep(*model_.runner, batch);
    ASSERT_EQ(result.samples.size(), batch.sequences.size());
    actual.push_back(result.samples[ours].token_id);
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      SequenceStep& sequence = batch.sequences[s];
      sequence.start_position += static_cast<int32_t>(sequence.token_ids.size());
      sequence.token_ids = {result.samples[s].token_id};
    }
    if (step == 15) batch.sequences.erase(batch.sequences.begin() + (ours == 0 ? 1 : 0));
  }
  EXPECT_EQ(actual, alone);
}

TEST_F(StoriesModel, TwoStepsInFlightGiveTheSameTokens) {
  const SamplingParams sampling{.temperature = 1.0f, .seed = 7};
  const auto prompt = RandomPrompt(20, kStoriesVocab, 4);
  const auto expected = TokenIds(
      Generate(*model_.runner, prompt, BlockRange(0, 4), {.num_tokens = 30, .sampling = sampling}));
  SequenceStep step{
      .token_ids = prompt, .block_table = BlockRange(5, 9), .sample = true, .sampling = sampling};
  std::vector<StepTicket> tickets;
  std::vector<int32_t> actual;
  const auto read_oldest = [&] {
    auto result = model_.runner->Wait(tickets.front(), std::chrono::seconds(60));
    ASSERT_TRUE(result.ok()) << result.status();
    actual.push_back(result->samples[0].token_id);
    tickets.erase(tickets.begin());
  };
  int32_t position = 0;
  for (int i = 0; i < 30; ++i) {
    if (tickets.size() == kStepsInFlightMax) read_oldest();
    const auto ticket = model_.runner->Execute({{step}});
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
    position += step.from_previous_step ? 1 : static_cast<int32_t>(prompt.size());
    step.start_position = position;
    step.token_ids.clear();
    step.from_previous_step = true;
    step.previous_sample = 0;
  }
  while (!tickets.empty()) read_oldest();
  EXPECT_EQ(actual, expected);
}

TEST_F(StoriesModel, ATokenOutsideTheVocabularyFailsItsOwnSequenceOnly) {
  const auto prompt = RandomPrompt(30, kStoriesVocab, 5);
  const auto alone = Generate(*model_.runner, prompt, BlockRange(0, 2), {.num_tokens = 1});
  for (const int32_t bad : {-1, kStoriesVocab, INT32_MIN, INT32_MAX}) {
    const StepResult result =
        RunStep(*model_.runner,
                {{{.token_ids = {1, bad, 3}, .block_table = BlockRange(4, 5), .sample = true},
                  {.token_ids = prompt, .block_table = BlockRange(0, 2), .sample = true}}});
    EXPECT_FALSE(result.samples[0].finite) << bad;
    EXPECT_TRUE(result.samples[1].finite);
    EXPECT_EQ(result.samples[1].token_id, alone[0].token_id);
  }
}

TEST_F(StoriesModel, WaitTimesOutAndCanBeRepeated) {
  const auto ticket = model_.runner->Execute({{{.token_ids = RandomPrompt(400, kStoriesVocab, 6),
                                                .block_table = BlockRange(0, 25),
                                                .sample = true}}});
  ASSERT_TRUE(ticket.ok());
  auto result = model_.runner->Wait(*ticket, Duration::zero());
  while (!result.ok()) {
    ASSERT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
    result = model_.runner->Wait(*ticket, std::chrono::milliseconds(2));
  }
  EXPECT_EQ(result->samples.size(), 1u);
}

TEST_F(StoriesModel, LogprobsBelongToTheTokenAndAreSorted) {
  const auto tokens = Generate(
      *model_.runner, RandomPrompt(12, kStoriesVocab, 7), BlockRange(0, 2),
      {.num_tokens = 8, .sampling = {.top_k = 1, .logprobs = true, .num_top_logprobs = 5}});
  for (const SampledToken& token : tokens) {
    ASSERT_EQ(token.top_logprobs.size(), 5u);
    EXPECT_EQ(token.top_logprobs[0].token_id, token.token_id);
    EXPECT_EQ(token.top_logprobs[0].logprob, token.logprob);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(std::isfinite(token.top_logprobs[i].logprob));
      EXPECT_LE(token.top_logprobs[i].logprob, i == 0 ? 0 : token.top_logprobs[i - 1].logprob);
    }
  }
}

TEST_F(StoriesModel, RowsOfTheHeadWithoutATokenAreNeverDrawn) {
  LoadOptions options = SmallBlocks();
  options.sampled_vocab = 300;
  const LoadedModel masked = LoadOrDie(CarriedModel("stories260K"), options, *device_);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto tokens =
        Generate(*masked.runner, {1}, BlockRange(0, 8),
                 {.num_tokens = 100,
                  .sampling = {.temperature = 100.0f, .seed = seed, .num_top_logprobs = 20}});
    for (const SampledToken& token : tokens) {
      EXPECT_LT(token.token_id, 300);
      EXPECT_TRUE(token.finite);
      for (const TopLogprob& top : token.top_logprobs) EXPECT_LT(top.token_id, 300);
    }
  }
}

TEST_F(StoriesModel, SeveralModelsShareADevice) {
  LoadedModel other = LoadOrDie(CarriedModel("prose-1m-draft"), SmallBlocks(), *device_);
  const auto prompt = RandomPrompt(25, kStoriesVocab, 8);
  const auto expected_a =
      TokenIds(Generate(*model_.runner, prompt, BlockRange(0, 3), {.num_tokens = 1}));
  const auto expected_b =
      TokenIds(Generate(*other.runner, prompt, BlockRange(0, 3), {.num_tokens = 1}));
  const StepBatch batch{{{.token_ids = prompt, .block_table = BlockRange(0, 3), .sample = true}}};
  for (int round = 0; round < 10; ++round) {
    const auto a = model_.runner->Execute(batch);
    const auto b = other.runner->Execute(batch);
    ASSERT_TRUE(a.ok() && b.ok());
    const auto result_b = other.runner->Wait(*b, std::chrono::seconds(60));
    const auto result_a = model_.runner->Wait(*a, std::chrono::seconds(60));
    ASSERT_TRUE(result_a.ok() && result_b.ok());
    EXPECT_EQ(result_a->samples[0].token_id, expected_a[0]);
    EXPECT_EQ(result_b->samples[0].token_id, expected_b[0]);
  }
}

TEST_F(StoriesModel, DescribesWhatItLoaded) {
  EXPECT_EQ(model_.layout.Fingerprint(),
            "kv1 layers=5 heads=4 block=16 dim=8 dtype=f32 order=LH2TD");
  EXPECT_EQ(model_.runner->limits().context_tokens_max, 512);
  EXPECT_EQ(model_.runner->limits().tokens_max, 512);
  EXPECT_EQ(model_.kv->num_blocks(), (32 << 20) / model_.layout.block_bytes());
  EXPECT_EQ(model_.revision.size(), 64u);
  // The embedding is the head, and is there once: 260 thousand parameters and some padding.
  EXPECT_GT(model_.weight_bytes, 260'000 * 4);
  EXPECT_LT(model_.weight_bytes, 300'000 * 4);
}

TEST(LoadModel, RefusesAContextBeyondTheModelsPositions) {
  auto device = MakeCpuDevice(1);
  LoadOptions options = SmallBlocks();
  options.context_tokens = 4 * 512;
  const auto refused = LoadModel(CarriedModel("stories260K"), options, *device);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("max_position_embeddings"));
  options.allow_beyond_model = true;
  LoadedModel model = LoadOrDie(CarriedModel("stories260K"), options, *device);
  EXPECT_EQ(model.runner->limits().context_tokens_max, 2048);
  // Positions past the model's range are computed, not read from a table that ends.
  const auto tokens = Generate(*model.runner, RandomPrompt(1000, kStoriesVocab, 9),
                               BlockRange(0, 64), {.num_tokens = 4});
  for (const SampledToken& token : tokens) EXPECT_TRUE(token.finite);
}

TEST(LoadModel, SaysWhatDidNotFit) {
  auto device = MakeCpuDevice(1);
  LoadOptions options;
  options.kv_memory_bytes = 1000;
  auto status = LoadModel(CarriedModel("stories260K"), options, *device).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds no block"));
  options.kv_memory_bytes = int64_t{1} << 60;
  status = LoadModel(CarriedModel("stories260K"), options, *device).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("KV pool"));
  // Room for the pool but not for the weights; then for both but not for activations.
  options.kv_memory_bytes = 8 << 20;
  auto tight = CpuDevice::Create({.threads = 1, .memory_bytes_max = (8 << 20) + 500'000});
  ASSERT_TRUE(tight.ok());
  status = LoadModel(CarriedModel("stories260K"), options, **tight).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers."));
  EXPECT_EQ((*tight)->memory_used(), 0);
  options.tokens_max = 1 << 16;
  tight = CpuDevice::Create({.threads = 1, .memory_bytes_max = (8 << 20) + 2'000'000});
  ASSERT_TRUE(tight.ok());
  status = LoadModel(CarriedModel("stories260K"), options, **tight).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("activations"));
}

TEST(LoadModel, AutomaticKvMemoryTakesWhatIsLeftAndLeavesRoomForOthers) {
  constexpr int64_t kMemory = int64_t{2} << 30;
  const auto load = [&](int64_t reserve, int32_t sharers) {
    auto device = CpuDevice::Create({.threads = 1, .memory_bytes_max = kMemory});
    CHECK(device.ok());
    LoadOptions options;
    options.kv_memory_bytes = kKvMemoryAuto;
    options.kv_reserve_bytes = reserve;
    options.kv_sharers = sharers;
    const LoadedModel model = LoadOrDie(CarriedModel("stories260K"), options, **device);
    EXPECT_LE((*device)->memory_used(), kMemory);
    return static_cast<int64_t>(model.kv->num_blocks()) * model.layout.block_bytes();
  };
  const int64_t alone = load(0, 1);
  EXPECT_GT(alone, kMemory / 2);
  EXPECT_LT(load(int64_t{256} << 20, 1), alone - (int64_t{255} << 20));
  EXPECT_LT(load(0, 2), alone / 2 + (int64_t{1} << 20));
}

TEST(LoadModel, RefusesWrongOptionsAndMissingModels) {
  auto device = MakeCpuDevice(1);
  const auto code = [&](const LoadOptions& options) {
    return LoadModel(CarriedModel("stories260K"), options, *device).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  LoadOptions options = SmallBlocks();
  options.tokens_max = 0;
  EXPECT_EQ(code(options), kInvalid);
  options = SmallBlocks();
  options.sequences_max = -1;
  EXPECT_EQ(code(options), kInvalid);
  options = SmallBlocks();
  options.sampled_vocab = kStoriesVocab + 1;
  EXPECT_EQ(code(options), kInvalid);
  options = SmallBlocks();
  options.block_tokens = 24;
  EXPECT_EQ(code(options), kInvalid);
  const auto missing = LoadModel("models/no-such-model", SmallBlocks(), *device).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no-such-model"));
}

TEST(ModelRunnerDeathTest, ChecksWhatItsOwnerPromised) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // The device has threads.
  auto device = MakeCpuDevice(1);
  LoadedModel model = LoadOrDie(CarriedModel("stories260K"), SmallBlocks(), *device);
  ModelRunner& runner = *model.runner;
  EXPECT_DEATH((void)runner.Execute({}), "sequences");
  EXPECT_DEATH((void)runner.Execute({{{.token_ids = {1}, .block_table = {}}}}), "block_table");
  EXPECT_DEATH((void)runner.Execute(
                   {{{.start_position = 512, .token_ids = {1}, .block_table = BlockRange(0, 40)}}}),
               "context_tokens_max");
  EXPECT_DEATH((void)runner.Execute({{{.token_ids = {1}, .block_table = {BlockId(1 << 30)}}}}),
               "block");
  EXPECT_DEATH(
      (void)runner.Execute(
          {{{.from_previous_step = true, .previous_sample = 0, .block_table = BlockRange(0, 1)}}}),
      "sample 0 of 0");
}

}  // namespace
}  // namespace baton
