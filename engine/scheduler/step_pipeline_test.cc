// Goal: steps come back in order with what belongs to them, at most two at a time, and blocks
// retired with a step come back with that step and not before.
#include "engine/scheduler/step_pipeline.h"

#include <gtest/gtest.h>

#include <chrono>

#include "engine/testing/scripted_executor.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

StepBatch OneToken(int32_t token) {
  SequenceStep step;
  step.token_ids = {token};
  step.sample = true;
  return {{step}};
}

std::vector<StepEntry> Entry(uint64_t id) {
  return {{.id = SequenceId(id), .start_position = 0, .num_tokens = 1, .sample = true}};
}

TEST(StepPipeline, GivesStepsBackInOrder) {
  ScriptedExecutor executor({});
  StepPipeline pipeline(&executor);
  ASSERT_TRUE(pipeline.Launch(Entry(1), OneToken(10)).ok());
  EXPECT_FALSE(pipeline.full());
  ASSERT_TRUE(pipeline.Launch(Entry(2), OneToken(20)).ok());
  EXPECT_TRUE(pipeline.full());
  auto first = pipeline.Collect(milliseconds(0));
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->entries[0].id, SequenceId(1));
  EXPECT_EQ((*first)->result.samples[0].token_id, 11);
  auto second = pipeline.Collect(milliseconds(0));
  EXPECT_EQ((*second)->result.samples[0].token_id, 21);
  EXPECT_EQ(pipeline.steps_in_flight(), 0);
}

TEST(StepPipeline, AStepThatIsNotDoneStaysInFlight) {
  ScriptedExecutor executor({});
  StepPipeline pipeline(&executor);
  executor.Hold();
  ASSERT_TRUE(pipeline.Launch(Entry(1), OneToken(10)).ok());
  auto result = pipeline.Collect(milliseconds(1));
  ASSERT_TRUE(result.ok());
  EXPECT_FALSE(result->has_value());
  EXPECT_EQ(pipeline.steps_in_flight(), 1);
}

TEST(StepPipeline, RetiredBlocksComeBackWithTheNewestStepOfTheirTime) {
  ScriptedExecutor executor({});
  StepPipeline pipeline(&executor);
  ASSERT_TRUE(pipeline.Launch(Entry(1), OneToken(10)).ok());
  ASSERT_TRUE(pipeline.Launch(Entry(2), OneToken(20)).ok());
  pipeline.Retire({SequenceId(1), {BlockId(5)}});
  EXPECT_TRUE((*pipeline.Collect(milliseconds(0)))->retired.empty());
  const auto second = pipeline.Collect(milliseconds(0));
  ASSERT_EQ((*second)->retired.size(), 1u);
  EXPECT_EQ((*second)->retired[0].owner, SequenceId(1));
  EXPECT_EQ((*second)->retired[0].blocks[0], BlockId(5));
}

TEST(StepPipeline, AFailureIsReportedAndAbandoningGivesTheRetiredBlocksBack) {
  ScriptedExecutor executor({});
  StepPipeline pipeline(&executor);
  ASSERT_TRUE(pipeline.Launch(Entry(1), OneToken(10)).ok());
  pipeline.Retire({SequenceId(1), {BlockId(5)}});
  executor.Fail(absl::InternalError("device lost"));
  EXPECT_EQ(pipeline.Collect(milliseconds(0)).status().message(), "device lost");
  EXPECT_FALSE(pipeline.Launch(Entry(2), OneToken(20)).ok());
  EXPECT_EQ(pipeline.Abandon().size(), 1u);
  EXPECT_EQ(pipeline.steps_in_flight(), 0);
}

}  // namespace
}  // namespace baton
