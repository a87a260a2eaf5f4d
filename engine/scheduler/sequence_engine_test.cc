// Goal: tokens, ends, credits and blocks of single sequences, and the paths that a random run meets
// too rarely. Method: the strict executor, whose tokens depend on every slot of the KV.
#include "engine/scheduler/sequence_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "engine/kvcache/block_table.h"
#include "engine/testing/scripted_executor.h"
#include "engine/testing/witness_executor.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int32_t kVocabulary = 50000;
constexpr TimePoint kNow{std::chrono::seconds(1)};

std::vector<int32_t> Prompt(int32_t length, int32_t first = 1) {
  std::vector<int32_t> out(length);
  for (int32_t i = 0; i < length; ++i) out[i] = first + i;
  return out;
}

SequenceSpec Spec(std::vector<int32_t> tokens, int32_t max_tokens) {
  SequenceSpec spec;
  spec.num_prompt_tokens = static_cast<int32_t>(tokens.size());
  spec.token_ids = std::move(tokens);
  spec.max_tokens = max_tokens;
  return spec;
}

struct Fixture {
  explicit Fixture(int32_t num_blocks, int32_t block_tokens = 4, int32_t context = 1 << 20,
                   int32_t tokens_per_step = 16)
      : kv(num_blocks, block_tokens),
        executor({.limits = {.tokens_max = tokens_per_step,
                             .sequences_max = 8,
                             .context_tokens_max = context},
                  .kv = kv.memory(),
                  .vocabulary_size = kVocabulary}),
        engine({.executor = &executor, .num_blocks = num_blocks, .block_tokens = block_tokens}) {}

  // One turn: launch if there is room, read one step if the pipeline is full or nothing was
  // launched. False when there is nothing left to do.
  bool Turn() {
    bool launched = false;
    if (!engine.pipeline_full()) launched = *engine.Launch(kNow);
    if (launched && !engine.pipeline_full()) return true;
    if (engine.steps_in_flight() == 0) return false;
    auto outcome = engine.Collect(milliseconds(0));
    EXPECT_TRUE(outcome.ok() && outcome->has_value());
    for (Sampled& s : (**outcome).sampled) {
      if (s.token.finite) {
        EXPECT_EQ(s.index, static_cast<int32_t>(tokens[s.id].size()));
        tokens[s.id].push_back(s.token.token_id);
      }
      if (!s.token.finite) nonfinite.push_back(s.id);
      if (s.finish.has_value()) finish[s.id] = *s.finish;
      if (s.finish.has_value() || !s.token.finite) engine.Remove(s.id);
    }
    return true;
  }
  void RunDry() {
    for (int i = 0; i < 100000 && Turn(); ++i) {
    }
    EXPECT_EQ(engine.steps_in_flight(), 0);
  }

  TestKvPool kv;
  WitnessExecutor executor;
  SequenceEngine engine;
  std::map<SequenceId, std::vector<int32_t>> tokens;
  std::map<SequenceId, FinishReason> finish;
  std::vector<SequenceId> nonfinite;
};

TEST(SequenceEngine, GeneratesTheReferenceTokensForEveryPromptLengthRoundABlock) {
  for (int32_t length : {1, 3, 4, 5, 8, 9, 15, 16, 17, 40}) {
    Fixture f(64);
    const SequenceId id = f.engine.Add(Spec(Prompt(length), 20));
    f.RunDry();
    EXPECT_EQ(f.tokens[id], WitnessContinuation(Prompt(length), 20, kVocabulary)) << length;
    EXPECT_EQ(f.finish[id], FinishReason::kLength);
    EXPECT_EQ(f.engine.pool().Audit().free, 64);
  }
}

TEST(SequenceEngine, BatchesOfOneToSixteenGiveTheSameTokens) {
  for (int batch = 1; batch <= 16; ++batch) {
    Fixture f(256);
    std::map<SequenceId, std::vector<int32_t>> expected;
    for (int i = 0; i < batch; ++i) {
      const std::vector<int32_t> prompt = Prompt(1 + 5 * i, 100 * i);
      expected[f.engine.Add(Spec(prompt, 12))] = WitnessContinuation(prompt, 12, kVocabulary);
    }
    f.RunDry();
    EXPECT_EQ(f.tokens, expected) << "batch " << batch;
    EXPECT_EQ(f.engine.pool().Audit().free, 256);
  }
}

TEST(SequenceEngine, TwoStepsAreInFlightAndAStopDiscardsTheOvershoot) {
  Fixture f(16);
  const std::vector<int32_t> expected = WitnessContinuation(Prompt(5), 3, kVocabulary);
  SequenceSpec spec = Spec(Prompt(5), 100);
  spec.eos_token_ids = {expected[2]};
  int ahead = 0;
  f.executor.OnExecute([&](const StepBatch& batch) {
    for (const SequenceStep& step : batch.sequences) ahead += step.from_previous_step ? 1 : 0;
  });
  const SequenceId id = f.engine.Add(spec);
  f.RunDry();
  EXPECT_EQ(ahead, 3) << "steps launched before the tokens of the last were read";
  EXPECT_EQ(f.tokens[id], expected);
  EXPECT_EQ(f.finish[id], FinishReason::kEos);
  // Prompt, two decodes, and the decode behind the end.
  EXPECT_EQ(f.executor.steps_executed(), 4u);
  EXPECT_EQ(f.engine.pool().Audit().free, 16);
}

TEST(SequenceEngine, AStopTokenCountsAndEndTokensGoBeforeIt) {
  Fixture f(16);
  const std::vector<int32_t> expected = WitnessContinuation(Prompt(5), 2, kVocabulary);
  SequenceSpec spec = Spec(Prompt(5), 2);
  spec.stop_token_ids = {expected[1]};
  const SequenceId stop = f.engine.Add(spec);
  f.RunDry();
  EXPECT_EQ(f.finish[stop], FinishReason::kStopToken);
  EXPECT_EQ(f.tokens[stop].size(), 2u);
  spec.eos_token_ids = {expected[1]};
  const SequenceId eos = f.engine.Add(spec);
  f.RunDry();
  EXPECT_EQ(f.finish[eos], FinishReason::kEos);
}

TEST(SequenceEngine, APromptOneShortOfTheContextGivesExactlyOneToken) {
  Fixture f(64, 4, /*context=*/32);
  EXPECT_EQ(f.engine.context_tokens_max(), 32);
  const SequenceId id = f.engine.Add(Spec(Prompt(31), 100));
  const SequenceId two = f.engine.Add(Spec(Prompt(30), 100));
  f.RunDry();
  EXPECT_EQ(f.tokens[id].size(), 1u);
  EXPECT_EQ(f.finish[id], FinishReason::kLength);
  EXPECT_EQ(f.tokens[two].size(), 2u);
  const absl::Status refused = f.engine.Validate(Spec(Prompt(32), 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("32 tokens; at most 31"));
}

TEST(SequenceEngine, WithoutMaxTokensTheContextEndsASequenceThatNeverStops) {
  Fixture f(64, 4, /*context=*/256);
  const SequenceId id = f.engine.Add(Spec(Prompt(16), INT32_MAX));
  f.RunDry();
  EXPECT_EQ(f.tokens[id].size(), 240u);
  EXPECT_EQ(f.finish[id], FinishReason::kLength);
}

TEST(SequenceEngine, ASequenceMayFillTheWholePoolAndThenEndsWithLength) {
  Fixture f(5);  // 20 slots.
  EXPECT_EQ(f.engine.context_tokens_max(), 21);
  const SequenceId id = f.engine.Add(Spec(Prompt(17), 100));
  f.RunDry();
  EXPECT_EQ(f.tokens[id], WitnessContinuation(Prompt(17), 4, kVocabulary));
  EXPECT_EQ(f.finish[id], FinishReason::kLength);
  EXPECT_EQ(f.engine.counters().preemptions, 0u);
}

TEST(SequenceEngine, WhatCanNeverFitIsRefusedWithBothNumbers) {
  Fixture f(40, 16, /*context=*/2048, 64);
  const absl::Status refused = f.engine.Validate(Spec(Prompt(700), 10));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("700 tokens; at most 640"));
  EXPECT_TRUE(f.engine.Validate(Spec(Prompt(600), 100)).ok());
}

TEST(SequenceEngine, RefusesSpecsThatMakeNoSense) {
  Fixture f(8);
  EXPECT_FALSE(f.engine.Validate(Spec({}, 1)).ok());
  EXPECT_FALSE(f.engine.Validate(Spec(Prompt(3), 0)).ok());
  SequenceSpec border = Spec(Prompt(3), 5);
  border.num_prompt_tokens = 4;
  EXPECT_FALSE(f.engine.Validate(border).ok());
  border.num_prompt_tokens = 0;
  EXPECT_FALSE(f.engine.Validate(border).ok());
  SequenceSpec resumed = Spec(Prompt(5), 2);
  resumed.num_prompt_tokens = 3;
  EXPECT_FALSE(f.engine.Validate(resumed).ok()) << "two of two tokens are there already";
  resumed.max_tokens = 3;
  EXPECT_TRUE(f.engine.Validate(resumed).ok());
}

TEST(SequenceEngine, AResumedAttemptKeepsTheBorderForIndexesAndLimits) {
  Fixture f(32);
  std::vector<int32_t> all = Prompt(6);
  const std::vector<int32_t> expected = WitnessContinuation(all, 10, kVocabulary);
  all.insert(all.end(), expected.begin(), expected.begin() + 4);
  SequenceSpec spec = Spec(all, 10);
  spec.num_prompt_tokens = 6;
  const SequenceId id = f.engine.Add(spec);
  f.tokens[id] = {expected.begin(),
                  expected.begin() + 4};  // Turn() checks that indexes go on at 4.
  f.RunDry();
  EXPECT_EQ(f.tokens[id], expected);
}

TEST(SequenceEngine, CreditsAreTokensAndAPausedSequenceKeepsItsBlocks) {
  Fixture f(32);
  SequenceSpec spec = Spec(Prompt(6), 10);
  spec.credits = 3;
  const SequenceId id = f.engine.Add(spec);
  f.RunDry();
  EXPECT_EQ(f.tokens[id].size(), 3u);
  EXPECT_FALSE(f.engine.has_work());
  EXPECT_GT(f.engine.pool().Audit().owned, 0);
  f.engine.GrantCredits(id, 1, kNow);
  EXPECT_TRUE(f.engine.has_work());
  f.RunDry();
  EXPECT_EQ(f.tokens[id].size(), 4u);
  f.engine.GrantCredits(id, 100, kNow);
  f.RunDry();
  EXPECT_EQ(f.tokens[id], WitnessContinuation(Prompt(6), 10, kVocabulary));
}

TEST(SequenceEngine, NoTokenIsDrawnWithoutACreditForIt) {
  Fixture f(32);
  SequenceSpec spec = Spec(Prompt(6), 10);
  spec.credits = 0;
  const SequenceId id = f.engine.Add(spec);
  f.RunDry();
  EXPECT_EQ(f.executor.steps_executed(), 0u);
  f.engine.GrantCredits(id, 1, kNow);
  f.RunDry();
  EXPECT_EQ(f.tokens[id].size(), 1u);
  EXPECT_EQ(f.executor.steps_executed(), 1u);
}

// Three sequences that together outgrow the pool: the last is preempted. The sweep over pool sizes
// and prompts moves the moment; the moments that were met are checked at the end.
TEST(SequenceEngine, PreemptionAfterAnyNumberOfTokensLeavesTheStreamUnchanged) {
  std::set<size_t> preempted_after;
  uint32_t most_preemptions = 0;
  for (int32_t num_blocks = 12; num_blocks <= 72; ++num_blocks) {
    for (int32_t length : {1, 8, 31, 90, 160}) {
      if (BlocksForTokens(length, 4) >= num_blocks) continue;
      Fixture f(num_blocks);
      const SequenceId elder = f.engine.Add(Spec(Prompt(8, 1000), 150));
      const SequenceId middle = f.engine.Add(Spec(Prompt(5, 2000), 30));
      const SequenceId younger = f.engine.Add(Spec(Prompt(length), 140));
      uint32_t preemptions = 0;
      while (f.Turn()) {
        const Sequence* s = f.engine.Find(younger);
        if (s == nullptr || s->preemptions == preemptions) continue;
        preemptions = s->preemptions;
        preempted_after.insert(f.tokens[younger].size());
      }
      most_preemptions = std::max(most_preemptions, preemptions);
      for (const auto& [id, prompt] :
           {std::pair(elder, Prompt(8, 1000)), std::pair(middle, Prompt(5, 2000)),
            std::pair(younger, Prompt(length))}) {
        const int32_t count = static_cast<int32_t>(f.tokens[id].size());
        EXPECT_EQ(f.tokens[id], WitnessContinuation(prompt, count, kVocabulary));
        EXPECT_EQ(f.finish.count(id), 1u);
      }
      EXPECT_EQ(f.engine.pool().Audit().free, num_blocks);
    }
  }
  for (size_t tokens : {0, 1, 17, 100}) EXPECT_TRUE(preempted_after.contains(tokens)) << tokens;
  EXPECT_GE(most_preemptions, 2u);
}

TEST(SequenceEngine, RemovingAtAnyPointGivesAllBlocksBackWhenTheStepsAreDone) {
  for (int turns = 0; turns < 12; ++turns) {
    Fixture f(32);
    const SequenceId removed = f.engine.Add(Spec(Prompt(30), 50));
    const SequenceId other = f.engine.Add(Spec(Prompt(9, 700), 10));
    for (int i = 0; i < turns; ++i) f.Turn();
    f.engine.Remove(removed);
    EXPECT_EQ(f.engine.Find(removed), nullptr);
    f.RunDry();
    EXPECT_EQ(f.tokens[other], WitnessContinuation(Prompt(9, 700), 10, kVocabulary)) << turns;
    EXPECT_EQ(f.engine.pool().Audit().free, 32) << turns;
  }
}

TEST(SequenceEngine, BlocksOfARemovedSequenceAreNotReusedBeforeItsStepIsDone) {
  Fixture f(8);
  const SequenceId id = f.engine.Add(Spec(Prompt(30), 50));
  ASSERT_TRUE(*f.engine.Launch(kNow));
  f.engine.Remove(id);
  EXPECT_EQ(f.engine.pool().num_free(), 0);
  ASSERT_TRUE(f.engine.Collect(milliseconds(0)).ok());
  EXPECT_EQ(f.engine.pool().num_free(), 8);
}

TEST(SequenceEngine, NonfiniteLogitsEndOnlyTheirSequence) {
  Fixture f(32);
  const std::vector<int32_t> bad = WitnessContinuation(Prompt(6), 3, kVocabulary);
  f.executor.SpoilLogitsIf([](const SequenceStep& s) { return s.start_position == 8; });
  const SequenceId spoiled = f.engine.Add(Spec(Prompt(6), 20));
  const SequenceId other = f.engine.Add(Spec(Prompt(3, 900), 5));
  f.RunDry();
  EXPECT_EQ(f.tokens[spoiled], bad);
  EXPECT_EQ(f.nonfinite, std::vector<SequenceId>{spoiled});
  EXPECT_EQ(f.tokens[other], WitnessContinuation(Prompt(3, 900), 5, kVocabulary));
  EXPECT_EQ(f.engine.pool().Audit().free, 32);
}

TEST(SequenceEngine, AReservationHoldsBlocksForPromptAndOutputAndJoinsBehindTheFirstToken) {
  Fixture f(32);
  const std::vector<int32_t> prompt = Prompt(7);
  const std::vector<int32_t> expected = WitnessContinuation(prompt, 10, kVocabulary);
  const auto id = f.engine.Reserve(Spec(prompt, 10), /*output_tokens=*/4);
  ASSERT_TRUE(id.ok()) << id.status();
  const Sequence* sequence = f.engine.Find(*id);
  EXPECT_EQ(sequence->block_table.size(), 3u);
  EXPECT_FALSE(f.Turn()) << "nothing to compute before the KV is there";
  for (int32_t i = 0; i < 7; ++i) {
    WriteTestSlot(f.kv.memory(), sequence->block_table[i / 4], i % 4,
                  {.token_id = prompt[i], .position = i});
  }
  EXPECT_FALSE(f.engine.Join(*id, expected[0]).has_value());
  f.tokens[*id] = {expected[0]};
  f.RunDry();
  EXPECT_EQ(f.tokens[*id], expected);
  EXPECT_EQ(f.engine.pool().Audit().free, 32);
}

TEST(SequenceEngine, AReservationNeverHoldsMoreThanTheSequenceCanFill) {
  Fixture f(32);
  const auto id = f.engine.Reserve(Spec(Prompt(4), 1), /*output_tokens=*/100);
  EXPECT_EQ(f.engine.Find(*id)->block_table.size(), 1u);
  const auto more = f.engine.Reserve(Spec(Prompt(4), 6), /*output_tokens=*/100);
  EXPECT_EQ(f.engine.Find(*more)->block_table.size(), 3u);
  f.engine.Remove(*id);
  f.engine.Remove(*more);
}

TEST(SequenceEngine, JoiningWithATokenThatEndsTheSequenceSaysSo) {
  Fixture f(32);
  SequenceSpec spec = Spec(Prompt(4), 1);
  const auto length = f.engine.Reserve(spec, 4);
  EXPECT_EQ(f.engine.Join(*length, 5), FinishReason::kLength);
  spec.max_tokens = 5;
  spec.stop_token_ids = {5};
  const auto stop = f.engine.Reserve(spec, 4);
  EXPECT_EQ(f.engine.Join(*stop, 5), FinishReason::kStopToken);
}

TEST(SequenceEngine, ReservationsAreCappedAndRefusedAsRetryable) {
  Fixture f(40, 16, 2048, 64);
  std::vector<SequenceId> held;
  for (int i = 0; i < 2; ++i) {
    const auto id = f.engine.Reserve(Spec(Prompt(140), 20), 4);
    ASSERT_TRUE(id.ok()) << i;
    held.push_back(*id);
  }
  const auto third = f.engine.Reserve(Spec(Prompt(140), 20), 4);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  f.engine.Remove(held[0]);
  EXPECT_TRUE(f.engine.Reserve(Spec(Prompt(140), 20), 4).ok());
}

TEST(SequenceEngine, ALostDeviceIsReportedAndAbandonedStepsGiveTheirBlocksBack) {
  Fixture f(32);
  const SequenceId a = f.engine.Add(Spec(Prompt(20), 10));
  const SequenceId b = f.engine.Add(Spec(Prompt(3), 10));
  ASSERT_TRUE(*f.engine.Launch(kNow));
  f.engine.Remove(b);
  f.executor.Fail(absl::UnavailableError("device lost"));
  EXPECT_EQ(f.engine.Launch(kNow).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(f.engine.Collect(milliseconds(0)).status().code(), absl::StatusCode::kUnavailable);
  f.engine.AbandonSteps();
  f.engine.Remove(a);
  EXPECT_EQ(f.engine.pool().Audit().free, 32);
}

TEST(SequenceEngine, DetachHandsTheBlocksOver) {
  Fixture f(32);
  const SequenceId id = f.engine.Add(Spec(Prompt(9), 1));
  ASSERT_TRUE(*f.engine.Launch(kNow));
  ASSERT_TRUE(f.engine.Collect(milliseconds(0)).ok());
  const std::vector<BlockId> blocks = f.engine.Detach(id);
  EXPECT_EQ(blocks.size(), 3u);
  EXPECT_EQ(f.engine.pool().Audit().owned, 3);
  f.engine.pool().DropHolder(blocks, BlockHolder::kSequence, id.value);
  EXPECT_EQ(f.engine.pool().Audit().free, 32);
}

TEST(SequenceEngine, ADecodeIsInEveryStepBesideALongPrompt) {
  Fixture f(2048, 4, 1 << 20, /*tokens_per_step=*/8);
  const SequenceId stream = f.engine.Add(Spec(Prompt(4), 200));
  f.Turn();
  f.Turn();
  f.engine.Add(Spec(Prompt(1000, 5000), 2));
  const uint64_t before = f.executor.steps_executed();
  const size_t tokens_before = f.tokens[stream].size();
  for (int i = 0; i < 60; ++i) f.Turn();
  const uint64_t steps = f.executor.steps_executed() - before;
  EXPECT_GE(f.tokens[stream].size() - tokens_before + 2, steps);
}

}  // namespace
}  // namespace baton
