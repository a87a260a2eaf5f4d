// Goal: the executors that other tests trust behave as their headers say, and the strict one
// notices what it is there to notice.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "engine/runner/null_executor.h"
#include "engine/testing/scripted_executor.h"
#include "engine/testing/witness_executor.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

SequenceStep Step(std::vector<int32_t> tokens, int32_t start, std::vector<BlockId> table) {
  SequenceStep step;
  step.start_position = start;
  step.token_ids = std::move(tokens);
  step.block_table = std::move(table);
  step.sample = true;
  return step;
}

std::vector<BlockId> Blocks(std::vector<int32_t> ids) {
  std::vector<BlockId> out;
  for (int32_t id : ids) out.push_back(BlockId(id));
  return out;
}

TEST(ScriptedExecutor, PlaysTheScriptAlsoFromAStepWhoseTokensWereNotRead) {
  TestKvPool pool(4, 4);
  ScriptedExecutor executor({.kv = pool.memory(), .vocabulary_size = 10});
  const auto first = executor.Execute({{Step({8}, 0, Blocks({2}))}});
  SequenceStep next = Step({0}, 1, Blocks({2}));
  next.from_previous_step = true;
  const auto second = executor.Execute({{next}});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(executor.Wait(*first, milliseconds(0))->samples[0].token_id, 9);
  EXPECT_EQ(executor.Wait(*second, milliseconds(0))->samples[0].token_id, 0);
  EXPECT_EQ(ReadTestSlot(pool.memory(), BlockId(2), 1).token_id, 9);
  EXPECT_EQ(ReadTestSlot(pool.memory(), BlockId(2), 1).position, 1);
}

TEST(ScriptedExecutor, WritesALayerEachTimeItIsAskedOfAStepThatReports) {
  TestKvPool pool(4, 4, /*num_layers=*/2);
  ScriptedExecutor executor({.kv = pool.memory(), .vocabulary_size = 10});
  const auto token = [&](int32_t slot) {
    return ReadTestSlot(pool.memory(), BlockId(2), slot).token_id;
  };
  StepBatch batch{{Step({5, 6, 7, 8}, 0, Blocks({2}))}};
  const auto quiet = executor.Execute(batch);
  EXPECT_EQ(executor.KvLayersReady(*quiet), 0);
  EXPECT_NE(token(0), 5);
  ASSERT_TRUE(executor.Wait(*quiet, milliseconds(0)).ok());
  batch.sequences[0].token_ids = {1, 2, 3, 4};
  batch.report_kv_layers = true;
  const auto step = executor.Execute(batch);
  EXPECT_EQ(executor.KvLayersReady(*step), 1);
  EXPECT_EQ(token(1), 2);
  EXPECT_EQ(token(2), 7);
  EXPECT_EQ(executor.KvLayersReady(*step), 2);
  EXPECT_EQ(executor.KvLayersReady(*step), 2);
  EXPECT_EQ(token(3), 4);
  ASSERT_TRUE(executor.Wait(*step, milliseconds(0)).ok());
}

TEST(WitnessExecutor, GivesTheReferenceContinuationOnlyWhenEveryBlockIsRight) {
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  for (int spoiled = -1; spoiled < 5; ++spoiled) {
    TestKvPool pool(4, 4);
    WitnessExecutor executor({.kv = pool.memory(), .vocabulary_size = 100000});
    const auto prefill = executor.Execute({{Step(prompt, 0, Blocks({3, 1}))}});
    const int32_t first = executor.Wait(*prefill, milliseconds(0))->samples[0].token_id;
    ASSERT_EQ(first, WitnessNextToken(prompt, 100000));
    if (spoiled >= 0) {
      const BlockId block(spoiled < 4 ? 3 : 1);
      WriteTestSlot(pool.memory(), block, spoiled % 4, {.token_id = 1, .position = spoiled});
    }
    const auto decode = executor.Execute({{Step({first}, 5, Blocks({3, 1}))}});
    const int32_t second = executor.Wait(*decode, milliseconds(0))->samples[0].token_id;
    const std::vector<int32_t> expected = WitnessContinuation(prompt, 2, 100000);
    EXPECT_EQ(expected[0], first);
    EXPECT_EQ(second == expected[1], spoiled < 0) << "spoiled position " << spoiled;
  }
}

TEST(HostExecutor, HeldStepsTimeOutAndEndAfterRelease) {
  ScriptedExecutor executor({.vocabulary_size = 10});
  executor.Hold();
  const auto ticket = executor.Execute({{Step({1}, 0, {})}});
  EXPECT_EQ(executor.Wait(*ticket, milliseconds(2)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  executor.Release();
  EXPECT_EQ(executor.Wait(*ticket, milliseconds(2))->samples[0].token_id, 2);
}

TEST(HostExecutor, ASlowStepIsNotDoneBeforeItsTime) {
  ScriptedExecutor executor({.step_time = milliseconds(30)});
  const auto ticket = executor.Execute({{Step({1}, 0, {})}});
  EXPECT_FALSE(executor.Wait(*ticket, milliseconds(1)).ok());
  EXPECT_TRUE(executor.Wait(*ticket, std::chrono::seconds(10)).ok());
}

TEST(HostExecutor, AFailedDeviceRefusesEverythingFromThenOn) {
  ScriptedExecutor executor({});
  const auto ticket = executor.Execute({{Step({1}, 0, {})}});
  executor.Fail(absl::InternalError("lost"));
  EXPECT_EQ(executor.Wait(*ticket, milliseconds(0)).status().message(), "lost");
  EXPECT_FALSE(executor.Execute({{Step({1}, 0, {})}}).ok());
}

TEST(HostExecutor, SpoilsOnlyTheLogitsItIsToldTo) {
  ScriptedExecutor executor({});
  executor.SpoilLogitsIf([](const SequenceStep& s) { return s.token_ids[0] == 2; });
  const auto ticket = executor.Execute({{Step({1}, 0, {}), Step({2}, 0, {})}});
  const auto result = executor.Wait(*ticket, milliseconds(0));
  EXPECT_TRUE(result->samples[0].finite);
  EXPECT_FALSE(result->samples[1].finite);
}

TEST(HostExecutorDeathTest, DiesWhenTwoEntriesWriteOneBlock) {
  TestKvPool pool(4, 4);
  ScriptedExecutor executor({.kv = pool.memory()});
  EXPECT_DEATH((void)executor.Execute({{Step({1}, 0, Blocks({1})), Step({2}, 0, Blocks({1}))}}),
               "written by two entries");
}

TEST(HostExecutorDeathTest, DiesWhenAStepIsAboveTheLimits) {
  ScriptedExecutor executor(
      {.limits = {.tokens_max = 2, .sequences_max = 1, .context_tokens_max = 8}});
  EXPECT_DEATH((void)executor.Execute({{Step({1, 2, 3}, 0, {})}}), "tokens_max");
  EXPECT_DEATH((void)executor.Execute({{Step({1}, 0, {}), Step({1}, 0, {})}}), "sequences_max");
}

TEST(NullExecutor, GivesTheFixedTokenForEachSample) {
  NullExecutor executor({.tokens_max = 8, .sequences_max = 8, .context_tokens_max = 8}, 7);
  SequenceStep no_sample = Step({1}, 0, {});
  no_sample.sample = false;
  const auto first = executor.Execute({{no_sample, Step({1}, 0, {})}});
  const auto second = executor.Execute({{Step({1}, 0, {})}});
  EXPECT_EQ(executor.Wait(*first, milliseconds(0))->samples.size(), 1u);
  EXPECT_EQ(executor.Wait(*second, milliseconds(0))->samples[0].token_id, 7);
}

}  // namespace
}  // namespace baton
