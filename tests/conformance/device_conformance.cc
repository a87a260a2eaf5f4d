#include "tests/conformance/device_conformance.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "kernels/kv_copy/kv_copy.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Compiled = CompiledTestModel;

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

// Each value within `tolerance` of the row's largest; `expected` may have more rows.
bool RowsAreNear(const std::vector<float>& actual, const std::vector<float>& expected, size_t cols,
                 double tolerance) {
  for (size_t row = 0; row < actual.size(); row += cols) {
    double largest = 0;
    double error = 0;
    for (size_t i = row; i < row + cols; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      error = std::max(error, std::abs(static_cast<double>(actual[i]) - expected[i]));
    }
    if (!(error <= tolerance * largest)) return false;
  }
  return true;
}

constexpr int32_t kTokensMax = 128;  // Enough work for the helpers of a CPU device.
constexpr int32_t kSamplesMax = 64;
constexpr Duration kLimit = std::chrono::seconds(60);

}  // namespace

std::vector<int32_t> RandomTokens(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(rng() % 37));
  return out;
}

CompiledTestModel::CompiledTestModel(Device& device, int32_t block_tokens, uint32_t seed,
                                     int32_t num_blocks)
    : model_(seed), block_tokens_(block_tokens) {
  auto kv = device.CreateKvPool(model_.Layout(device, block_tokens), num_blocks);
  CHECK(kv.ok()) << kv.status();
  kv_ = *std::move(kv);
  auto list = model_.Record(device);
  CHECK(list.ok()) << list.status();
  const int32_t buckets[] = {1, 8, kTokensMax};
  auto program = device.Compile(
      *list, buckets, {.sequences_max = 16, .samples_max = kSamplesMax, .context_tokens_max = 128},
      *kv_);
  CHECK(program.ok()) << program.status();
  program_ = *std::move(program);
}

DeviceTicket CompiledTestModel::Start(const std::vector<TestSequence>& sequences, bool logits) {
  StepMeta meta = MakeMeta(sequences, block_tokens_);
  meta.return_logits = logits;
  const auto num_tokens = static_cast<int32_t>(meta.positions.size());
  int bucket = 0;
  while (program_->buckets()[static_cast<size_t>(bucket)] < num_tokens) ++bucket;
  const auto ticket = program_->Enqueue(bucket, meta);
  CHECK(ticket.ok()) << ticket.status();
  return *ticket;
}

StepOutputs CompiledTestModel::Finish(DeviceTicket ticket) {
  auto outputs = program_->Wait(ticket, kLimit);
  CHECK(outputs.ok()) << outputs.status();
  return *std::move(outputs);
}

std::vector<float> CompiledTestModel::Logits(const std::vector<int32_t>& tokens, size_t chunk,
                                             const std::vector<int32_t>& table) {
  std::vector<float> out;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(at);
    const StepOutputs outputs = Run({{.start_position = static_cast<int32_t>(at),
                                      .token_source = {first, first + static_cast<ptrdiff_t>(n)},
                                      .block_table = table,
                                      .sample_rows = Range(0, static_cast<int32_t>(n))}});
    out.insert(out.end(), outputs.logits.begin(), outputs.logits.end());
  }
  return out;
}

void DeviceConformance::SetUp() {
  if (GetParam().create == nullptr) GTEST_SKIP() << "no such device here";
  auto device = GetParam().create();
  ASSERT_TRUE(device.ok()) << device.status();
  device_ = *std::move(device);
}

TEST_P(DeviceConformance, LogitsEqualDoublePrecision) {
  Compiled c(*device_, 16);
  const auto tokens = RandomTokens(50, 3);
  const auto expected = c.model().ReferenceLogits(tokens);
  const auto actual = c.Logits(tokens, 50, {3, 0, 7, 1});
  const size_t cols = expected[0].size();
  ASSERT_EQ(actual.size(), tokens.size() * cols);
  for (size_t t = 0; t < tokens.size(); ++t) {
    double largest = 0;
    for (const double v : expected[t]) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < cols; ++i) {
      EXPECT_NEAR(actual[t * cols + i], expected[t][i], GetParam().tolerance * largest);
    }
  }
}

TEST_P(DeviceConformance, BitsDoNotDependOnChunkingBlocksOrBlockSize) {
  Compiled c(*device_, 16);
  Compiled large_blocks(*device_, 64);
  const auto tokens = RandomTokens(61, 4);
  const auto whole = c.Logits(tokens, 61, {0, 1, 2, 3});
  EXPECT_EQ(c.Logits(tokens, 1, {9, 2, 5, 4}), whole);
  EXPECT_EQ(c.Logits(tokens, 7, {6, 3, 2, 1}), whole);
  EXPECT_EQ(c.Logits(tokens, 16, {20, 21, 22, 23}), whole);
  EXPECT_EQ(large_blocks.Logits(tokens, 33, {5}), whole);
}

TEST_P(DeviceConformance, BitsDoNotDependOnTheRestOfTheBatch) {
  Compiled c(*device_, 16);
  const auto tokens = RandomTokens(20, 5);
  const auto alone = c.Logits(tokens, 20, {0, 1});
  const size_t cols = alone.size() / tokens.size();
  // The same sequence amid others of other lengths, its last token decoded in a batch.
  std::vector<TestSequence> batch;
  for (int32_t i = 0; i < 5; ++i) {
    batch.push_back({.start_position = 0,
                     .token_source = RandomTokens(static_cast<size_t>(1 + i * 3), 50u + i),
                     .block_table = {2 + i},
                     .sample_rows = {i * 3}});
  }
  batch.insert(batch.begin() + 2, {.start_position = 0,
                                   .token_source = {tokens.begin(), tokens.end() - 1},
                                   .block_table = {8, 9},
                                   .sample_rows = {18}});
  const StepOutputs first = c.Run(batch);
  for (size_t i = 0; i < cols; ++i) EXPECT_EQ(first.logits[2 * cols + i], alone[18 * cols + i]);
  for (size_t s = 0; s < batch.size(); ++s) {
    batch[s].start_position += static_cast<int32_t>(batch[s].token_source.size());
    batch[s].token_source = {s == 2 ? tokens.back() : 1};
    batch[s].sample_rows = {0};
  }
  const StepOutputs second = c.Run(batch);
  for (size_t i = 0; i < cols; ++i) EXPECT_EQ(second.logits[2 * cols + i], alone[19 * cols + i]);
}

TEST_P(DeviceConformance, SamplesFeedTheNextStepBeforeTheyAreRead) {
  Compiled c(*device_, 16);
  const kernels::SampleParams sampling{.temperature = 1.0f, .noise = {.seed = 77}};
  const auto prompt_a = RandomTokens(9, 6);
  const auto prompt_b = RandomTokens(4, 7);
  // Step by step, every token read before the next step.
  std::vector<std::vector<int32_t>> expected(2);
  std::vector<TestSequence> batch = {
      {.token_source = prompt_a, .block_table = {0, 1}, .sample_rows = {8}, .sampling = sampling},
      {.token_source = prompt_b, .block_table = {2, 3}, .sample_rows = {3}, .sampling = sampling}};
  auto advance = [&](int32_t token_a, int32_t token_b) {
    const int32_t next[] = {token_a, token_b};
    for (size_t s = 0; s < 2; ++s) {
      batch[s].start_position += static_cast<int32_t>(batch[s].token_source.size());
      batch[s].token_source = {next[s]};
      batch[s].sample_rows = {0};
    }
  };
  const auto first_batch = batch;
  for (int step = 0; step < 10; ++step) {
    const StepOutputs outputs = c.Run(batch);
    for (size_t s = 0; s < 2; ++s) expected[s].push_back(outputs.samples[s].token);
    advance(outputs.samples[0].token, outputs.samples[1].token);
  }
  // The same with two steps in flight.
  batch = first_batch;
  DeviceTicket waiting = c.Start(batch);
  std::vector<std::vector<int32_t>> actual(2);
  for (int step = 0; step < 10; ++step) {
    advance(-1, -2);
    const DeviceTicket next = c.Start(batch);
    const StepOutputs outputs = c.Finish(waiting);
    for (size_t s = 0; s < 2; ++s) actual[s].push_back(outputs.samples[s].token);
    waiting = next;
  }
  c.Finish(waiting);
  EXPECT_EQ(actual, expected);
}

TEST_P(DeviceConformance, PaddingOfTheHeadIsNeverDrawn) {
  Compiled c(*device_, 16);
  for (int32_t position = 0; position < 60; ++position) {
    const StepOutputs outputs =
        c.Run({{.start_position = position,
                .token_source = {position % 37},
                .block_table = {0, 1, 2, 3},
                .sample_rows = {0},
                .sampling = {.temperature = 100.0f, .num_top_logprobs = 20}}});
    EXPECT_LT(outputs.samples[0].token, c.model().shape().vocab);
    for (int i = 0; i < 20; ++i) {
      EXPECT_LT(outputs.samples[0].top_ids[i], c.model().shape().vocab);
    }
  }
}

TEST_P(DeviceConformance, ADamagedRowIsReportedAndDisturbsNobody) {
  Compiled c(*device_, 16);
  const auto make = [](int32_t bad_token) {
    std::vector<TestSequence> batch;
    for (int32_t i = 0; i < 4; ++i) {
      batch.push_back({.token_source = RandomTokens(6, 80u + i),
                       .block_table = {i},
                       .sample_rows = {5},
                       .sampling = {.temperature = 0.7f, .noise = {.seed = 5}, .logprobs = true}});
    }
    if (bad_token != 0) batch[1].token_source[2] = bad_token;
    return batch;
  };
  const StepOutputs clean = c.Run(make(0));
  // An id outside the table: past the end, and as large as an id can be.
  for (const int32_t bad : {41, INT32_MAX}) {
    const StepOutputs damaged = c.Run(make(bad));
    for (size_t s = 0; s < 4; ++s) {
      EXPECT_EQ(damaged.samples[s].finite, s != 1);
      EXPECT_TRUE(std::isfinite(damaged.samples[s].logprob));
      if (s == 1) continue;
      EXPECT_EQ(damaged.samples[s].token, clean.samples[s].token);
      EXPECT_EQ(damaged.samples[s].logprob, clean.samples[s].logprob);
    }
  }
  // Blocks that held NaN are as good as new.
  const StepOutputs again = c.Run(make(0));
  EXPECT_EQ(again.logits, clean.logits);
}

TEST_P(DeviceConformance, StepsWithoutSamplesOnlyWriteKv) {
  Compiled c(*device_, 16);
  const auto tokens = RandomTokens(10, 8);
  const StepOutputs none =
      c.Run({{.token_source = {tokens.begin(), tokens.end() - 1}, .block_table = {0}}});
  EXPECT_TRUE(none.samples.empty());
  EXPECT_TRUE(none.logits.empty());
  const StepOutputs last = c.Run({{.start_position = 9,
                                   .token_source = {tokens.back()},
                                   .block_table = {0},
                                   .sample_rows = {0}}});
  const auto whole = c.Logits(tokens, 10, {1});
  EXPECT_EQ(
      last.logits,
      std::vector<float>(whole.end() - static_cast<ptrdiff_t>(last.logits.size()), whole.end()));
}

TEST_P(DeviceConformance, ProgramsOfOneDeviceTakeTurns) {
  Compiled a(*device_, 16, 1);
  Compiled b(*device_, 32, 2);
  const auto tokens = RandomTokens(12, 9);
  const std::vector<TestSequence> batch = {
      {.token_source = tokens, .block_table = {0}, .sample_rows = {11}}};
  const auto expected_a = a.Run(batch).logits;
  const auto expected_b = b.Run(batch).logits;
  EXPECT_NE(expected_a, expected_b);
  for (int round = 0; round < 20; ++round) {
    const DeviceTicket ticket_a = a.Start(batch);
    const DeviceTicket ticket_b = b.Start(batch);
    EXPECT_EQ(b.Finish(ticket_b).logits, expected_b);
    EXPECT_EQ(a.Finish(ticket_a).logits, expected_a);
  }
}

TEST_P(DeviceConformance, ProgramsOfOneDeviceRunOnThreadsOfTheirOwn) {
  // As two models in one process do, or a prefill and a decode worker. Prompts and single tokens of
  // every number of sequences, so that graphs are captured while the other program launches.
  constexpr int kThreads = 3;
  constexpr int32_t kSequences = 12;
  std::vector<std::thread> threads;
  std::vector<std::string> failures(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t round = 0; round < 6 && failures[t].empty(); ++round) {
        Compiled c(*device_, 16, 1 + round);
        std::vector<TestSequence> prompts;
        std::vector<TestSequence> steps;
        for (int32_t i = 0; i < kSequences; ++i) {
          const auto tokens = RandomTokens(10, 7 * round + static_cast<uint32_t>(i));
          prompts.push_back({.start_position = 0,
                             .token_source = {tokens.begin(), tokens.end() - 1},
                             .block_table = {i},
                             .sample_rows = {}});
          steps.push_back({.start_position = 9,
                           .token_source = {tokens.back()},
                           .block_table = {i},
                           .sample_rows = {0}});
        }
        c.Run(prompts);
        std::vector<float> expected;
        for (const TestSequence& step : steps) {
          const auto logits = c.Run({step}).logits;
          expected.insert(expected.end(), logits.begin(), logits.end());
        }
        const size_t cols = expected.size() / kSequences;
        for (int32_t n = 1; n <= kSequences; ++n) {
          const std::vector<TestSequence> batch(steps.begin(), steps.begin() + n);
          for (int again = 0; again < 3; ++again) {
            c.Run(prompts);
            const auto logits = c.Run(batch).logits;
            if (!RowsAreNear(logits, expected, cols, 2 * GetParam().tolerance)) {
              failures[t] = "other logits with " + std::to_string(n) + " sequences";
            }
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

TEST_P(DeviceConformance, AProgramMayBeDestroyedWithStepsInFlight) {
  for (int round = 0; round < 10; ++round) {
    Compiled c(*device_, 16);
    const std::vector<TestSequence> batch = {
        {.token_source = RandomTokens(60, 10), .block_table = {0, 1, 2, 3}, .sample_rows = {59}}};
    c.Start(batch);
    c.Start(batch);
  }
}

TEST_P(DeviceConformance, WaitGivesUpAtItsDeadlineAndCanBeCalledAgain) {
  Compiled c(*device_, 16);
  const DeviceTicket ticket = c.Start(
      {{.token_source = RandomTokens(64, 11), .block_table = {0, 1, 2, 3}, .sample_rows = {63}}});
  auto outputs = c.program().Wait(ticket, Duration::zero());
  while (!outputs.ok()) {
    ASSERT_EQ(outputs.status().code(), absl::StatusCode::kDeadlineExceeded);
    outputs = c.program().Wait(ticket, std::chrono::milliseconds(1));
  }
  EXPECT_EQ(outputs->samples.size(), 1u);
}

TEST_P(DeviceConformance, KvMovesToAnotherPoolByRanges) {
  Compiled source(*device_, 16);
  Compiled target(*device_, 16);
  const auto tokens = RandomTokens(40, 12);
  source.Logits(std::vector<int32_t>(tokens.begin(), tokens.end() - 1), 39, {4, 2, 9});
  const std::vector<TestSequence> last_step = {{.start_position = 39,
                                                .token_source = {tokens.back()},
                                                .block_table = {4, 2, 9},
                                                .sample_rows = {0}}};
  const auto expected = source.Run(last_step).logits;
  std::vector<absl::Span<const std::byte>> from;
  std::vector<absl::Span<std::byte>> to;
  for (const int32_t block : {4, 2, 9}) {
    from.emplace_back(source.kv().block(BlockId(block)));
    to.push_back(target.kv().block(BlockId(block + 1)));
  }
  auto moved_step = last_step;
  moved_step[0].block_table = {5, 3, 10};
  const size_t bytes = 3 * from[0].size();
  for (const StagingPlace place : {StagingPlace::kHost, StagingPlace::kDevice}) {
    const auto memory = device_->AllocateStaging(static_cast<int64_t>(bytes), place);
    ASSERT_TRUE(memory.ok()) << memory.status();
    // Bytes that are not there yet, in the staging and in the blocks.
    const std::vector<std::byte> zeros(bytes);
    ASSERT_TRUE(device_->CopyStaging(zeros, memory->get()).ok());
    ASSERT_TRUE(device_->KvScatter({memory->get(), bytes}, to).ok());
    EXPECT_NE(target.Run(moved_step).logits, expected);

    const auto sent = device_->KvGather(from, absl::MakeSpan(memory->get(), bytes));
    ASSERT_TRUE(sent.ok()) << sent.status();
    std::vector<std::byte> copy(bytes);
    ASSERT_TRUE(device_->CopyStaging({memory->get(), bytes}, copy.data()).ok());
    EXPECT_EQ(*sent, kernels::KvChecksum(copy));
    const auto received = device_->KvScatter({memory->get(), bytes}, to);
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(*received, *sent);
    EXPECT_EQ(target.Run(moved_step).logits, expected);
  }
  // Ordinary memory does too.
  std::vector<std::byte> staging(bytes);
  const auto sent = device_->KvGather(from, absl::MakeSpan(staging));
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(*sent, kernels::KvChecksum(staging));
}

TEST_P(DeviceConformance, LayersOfKvThatAreReportedAreCompleteWhileTheStepRuns) {
  Compiled c(*device_, 16);
  const KvLayout& layout = c.kv().layout();
  const auto layer_bytes = static_cast<size_t>(layout.layer_bytes());
  const std::vector<int32_t> table = {4, 2, 9, 0, 11, 7, 15, 3};
  std::vector<std::byte> staging(table.size() * layer_bytes);
  const auto gather = [&](int32_t layer) {
    std::vector<absl::Span<const std::byte>> ranges;
    ranges.reserve(table.size());
    for (const int32_t block : table) {
      ranges.emplace_back(c.kv()
                              .block(BlockId(block))
                              .subspan(static_cast<size_t>(layer) * layer_bytes, layer_bytes));
    }
    const auto checksum = device_->KvGather(ranges, absl::MakeSpan(staging));
    CHECK(checksum.ok()) << checksum.status();
    return *checksum;
  };
  int32_t seen_early = 0;
  for (uint32_t round = 0; round < 50; ++round) {
    StepMeta meta = MakeMeta({{.start_position = 0,
                               .token_source = RandomTokens(kTokensMax, 100 + round),
                               .block_table = table,
                               .sample_rows = {}}},
                             16);
    meta.report_kv_layers = true;
    const auto ticket = c.program().Enqueue(2, meta);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    std::vector<uint64_t> early;
    while (true) {
      const int32_t ready = c.program().KvLayersReady(*ticket);
      ASSERT_GE(ready, static_cast<int32_t>(early.size())) << "layers came back";
      ASSERT_LE(ready, layout.num_layers);
      while (static_cast<int32_t>(early.size()) < ready) {
        early.push_back(gather(static_cast<int32_t>(early.size())));
      }
      const auto outputs = c.program().Wait(*ticket, Duration::zero());
      if (outputs.ok()) break;
      ASSERT_EQ(outputs.status().code(), absl::StatusCode::kDeadlineExceeded);
    }
    seen_early += static_cast<int32_t>(early.size());
    for (size_t layer = 0; layer < early.size(); ++layer) {
      EXPECT_EQ(gather(static_cast<int32_t>(layer)), early[layer]) << "layer " << layer;
    }
  }
  EXPECT_GT(seen_early, 0);

  // Nothing is said of a step that was not asked to, nor what the step before it has said.
  const DeviceTicket quiet = c.Start({{.start_position = 0,
                                       .token_source = RandomTokens(16, 1),
                                       .block_table = {4},
                                       .sample_rows = {}}});
  EXPECT_EQ(c.program().KvLayersReady(quiet), 0);
  c.Finish(quiet);
}

TEST_P(DeviceConformance, PrepareRefusesSegmentsThatDoNotFit) {
  const TestTensor good = RandomTensor(4, 6, DType::kF32, 1, 1);
  const TestModel model;
  const TestTensor narrow = RandomTensor(4, 5, DType::kF32, 1, 2);
  const auto code = [&](const std::vector<WeightSegment>& segments, WeightRole role) {
    return device_->Prepare(segments, role, model.Compute(*device_)).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}, WeightRole::kMatrix), kInvalid);
  EXPECT_EQ(code({good.Segment(), narrow.Segment()}, WeightRole::kMatrix), kInvalid);
  EXPECT_EQ(code({good.Segment()}, WeightRole::kVector), kInvalid);
  EXPECT_EQ(code({good.Segment()}, WeightRole::kGatedMatrix), kInvalid);
  WeightSegment damaged = good.Segment();
  damaged.rows = 5;
  EXPECT_EQ(code({damaged}, WeightRole::kMatrix), kInvalid);
  damaged.rows = INT64_MAX / 2;
  EXPECT_EQ(code({damaged}, WeightRole::kMatrix), kInvalid);
  damaged = good.Segment();
  damaged.dtype = DType::kI32;
  EXPECT_EQ(code({damaged}, WeightRole::kMatrix), kInvalid);
  EXPECT_EQ(code({good.Segment()}, WeightRole::kMatrix), absl::StatusCode::kOk);
}

TEST_P(DeviceConformance, CompileRefusesListsThatDoNotFitThePool) {
  TestModel model;
  auto list = model.Record(*device_);
  ASSERT_TRUE(list.ok());
  const ProgramLimits limits{.sequences_max = 1, .samples_max = 1, .context_tokens_max = 16};
  KvLayout layout = model.Layout(*device_, 16);
  layout.head_dim = 12;
  auto other = device_->CreateKvPool(layout, 1);
  ASSERT_TRUE(other.ok());
  const int32_t buckets[] = {1};
  const auto mismatch = device_->Compile(*list, buckets, limits, **other);
  EXPECT_EQ(mismatch.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(mismatch.status().message()), HasSubstr("dim=12"));
  layout = model.Layout(*device_, 16);
  layout.num_layers = 1;
  auto shallow = device_->CreateKvPool(layout, 1);
  ASSERT_TRUE(shallow.ok());
  EXPECT_THAT(std::string(device_->Compile(*list, buckets, limits, **shallow).status().message()),
              HasSubstr("no layer 1"));
  auto kv = device_->CreateKvPool(model.Layout(*device_, 16), 1);
  ASSERT_TRUE(kv.ok());
  const int32_t descending[] = {8, 8};
  EXPECT_FALSE(device_->Compile(*list, descending, limits, **kv).ok());
  EXPECT_FALSE(device_->Compile(*list, {}, limits, **kv).ok());
  EXPECT_TRUE(device_->Compile(*list, buckets, limits, **kv).ok());
}

TEST_P(DeviceConformance, MemoryIsCountedAndRunsOutWithAClearError) {
  const int64_t before = device_->memory_used();
  {
    TestModel model;
    auto kv = device_->CreateKvPool(model.Layout(*device_, 16), 10);
    ASSERT_TRUE(kv.ok());
    EXPECT_EQ(device_->memory_used(), before + 10 * model.Layout(*device_, 16).block_bytes());
    const auto too_many = device_->CreateKvPool(model.Layout(*device_, 16), INT32_MAX);
    EXPECT_EQ(too_many.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(too_many.status().message()), HasSubstr("KV pool"));
    // Fits by itself, but not beside what is there.
    const auto blocks =
        static_cast<int32_t>(device_->memory_max() / model.Layout(*device_, 16).block_bytes());
    EXPECT_EQ(device_->CreateKvPool(model.Layout(*device_, 16), blocks).status().code(),
              absl::StatusCode::kResourceExhausted);
    auto list = model.Record(*device_);
    ASSERT_TRUE(list.ok());
    const int32_t huge[] = {1 << 30};
    const auto program = device_->Compile(
        *list, huge, {.sequences_max = 1, .samples_max = 1, .context_tokens_max = 16}, **kv);
    EXPECT_EQ(program.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(program.status().message()), HasSubstr("activations"));
  }
  EXPECT_EQ(device_->memory_used(), before);
}

}  // namespace baton
