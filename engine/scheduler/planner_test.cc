// Goal: each rule of planner.h, shown on the smallest state that needs it.
#include "engine/scheduler/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr TimePoint kNow{seconds(100)};

SchedulerState State(int32_t free_blocks, std::vector<SequenceView> sequences) {
  SchedulerState state;
  state.limits = {.tokens_per_step_max = 32,
                  .sequences_max = 8,
                  .num_blocks = 40,
                  .block_tokens = 16,
                  .growth_watermark_blocks = 1,
                  .reserved_blocks_max = 20,
                  .passes_max = 3,
                  .paused_hold = seconds(2)};
  state.free_blocks = free_blocks;
  state.sequences = std::move(sequences);
  return state;
}

SequenceView Waiting(uint64_t id, int32_t num_tokens) {
  return {.id = SequenceId(id),
          .phase = SequencePhase::kWaiting,
          .num_tokens = num_tokens,
          .tokens_max = 1000};
}

// Everything but the last token is computed.
SequenceView Decoding(uint64_t id, int32_t num_tokens) {
  return {.id = SequenceId(id),
          .phase = SequencePhase::kRunning,
          .num_tokens = num_tokens,
          .num_scheduled = num_tokens - 1,
          .tokens_max = 1000,
          .num_blocks = (num_tokens - 1 + 15) / 16};
}

SequenceView Prefilling(uint64_t id, int32_t num_tokens, int32_t num_scheduled) {
  SequenceView s = Decoding(id, num_tokens + 1);
  s.num_tokens = num_tokens;
  s.num_scheduled = num_scheduled;
  return s;
}

SequenceView Paused(SequenceView s, TimePoint since) {
  s.has_credit = false;
  s.paused_since = since;
  return s;
}

std::vector<uint64_t> Ids(const std::vector<SequenceId>& ids) {
  std::vector<uint64_t> out;
  for (SequenceId id : ids) out.push_back(id.value);
  return out;
}

std::vector<uint64_t> EntryIds(const StepPlan& plan) {
  std::vector<uint64_t> out;
  for (const StepEntry& e : plan.entries) out.push_back(e.id.value);
  return out;
}

TEST(Planner, PlansNothingForNobody) {
  const StepPlan plan = Plan(State(40, {}), kNow);
  EXPECT_THAT(plan.entries, IsEmpty());
  EXPECT_FALSE(plan.short_of_blocks);
}

TEST(Planner, DecodesComeBeforePromptsAndPromptsShareTheRest) {
  const StepPlan plan = Plan(
      State(20, {Prefilling(1, 100, 10), Decoding(2, 5), Decoding(3, 6), Waiting(4, 3)}), kNow);
  EXPECT_THAT(EntryIds(plan), ElementsAre(2, 3, 1));
  EXPECT_EQ(plan.entries[2].start_position, 10);
  EXPECT_EQ(plan.entries[2].num_tokens, 30);
  EXPECT_FALSE(plan.entries[2].sample);
  EXPECT_TRUE(plan.entries[0].sample);
}

TEST(Planner, PacksSeveralPromptsIntoOneStepAndCutsTheLast) {
  const StepPlan plan = Plan(State(40, {Waiting(1, 20), Waiting(2, 8), Waiting(3, 20)}), kNow);
  EXPECT_THAT(EntryIds(plan), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(plan.admitted), ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.entries[2].num_tokens, 4);
  EXPECT_FALSE(plan.entries[2].sample);
  EXPECT_TRUE(plan.entries[1].sample);
}

TEST(Planner, AnAdmittedSequenceGetsTheBlocksOfAllItsTokens) {
  const StepPlan plan = Plan(State(40, {Waiting(1, 100)}), kNow);
  ASSERT_EQ(plan.grants.size(), 1u);
  EXPECT_EQ(plan.grants[0].num_blocks, 7);
}

TEST(Planner, ADecodeThatFillsItsBlockGetsTheNextOne) {
  EXPECT_THAT(Plan(State(4, {Decoding(1, 16)}), kNow).grants, IsEmpty());
  const StepPlan plan = Plan(State(4, {Decoding(1, 17)}), kNow);
  ASSERT_EQ(plan.grants.size(), 1u);
  EXPECT_EQ(plan.grants[0].num_blocks, 1);
}

TEST(Planner, NobodyIsComputedPastItsLimit) {
  SequenceView s = Decoding(1, 5);
  s.tokens_max = 5;  // The fifth token is in flight and will be the last.
  EXPECT_THAT(Plan(State(10, {s}), kNow).entries, IsEmpty());
}

TEST(Planner, AdmissionLeavesTheWatermarkFreeUnlessNothingElseHoldsBlocks) {
  EXPECT_THAT(Plan(State(3, {Decoding(1, 5), Waiting(2, 48)}), kNow).admitted, IsEmpty());
  EXPECT_THAT(Ids(Plan(State(4, {Decoding(1, 5), Waiting(2, 48)}), kNow).admitted), ElementsAre(2));
  EXPECT_THAT(Ids(Plan(State(40, {Waiting(1, 640)}), kNow).admitted), ElementsAre(1));
}

TEST(Planner, SmallOnesPassABigOneThatDoesNotFit) {
  const StepPlan plan =
      Plan(State(3, {Decoding(1, 5), Waiting(2, 480), Waiting(3, 4), Waiting(4, 4)}), kNow);
  EXPECT_THAT(Ids(plan.admitted), ElementsAre(3, 4));
  EXPECT_THAT(Ids(plan.passed), ElementsAre(2, 2));
  EXPECT_TRUE(plan.short_of_blocks);
}

TEST(Planner, NobodyPassesABigOneThatHasBeenPassedOftenEnough) {
  SequenceView big = Waiting(2, 480);
  big.times_passed = 3;
  const StepPlan plan = Plan(State(3, {Decoding(1, 5), big, Waiting(3, 4)}), kNow);
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_TRUE(plan.short_of_blocks);
}

TEST(Planner, NothingIsAdmittedWhileARunningSequenceLacksABlock) {
  SequenceView first = Decoding(1, 17);
  SequenceView wired = Decoding(2, 100);
  wired.wired = true;
  const StepPlan plan = Plan(State(0, {first, wired, Waiting(3, 4)}), kNow);
  EXPECT_THAT(EntryIds(plan), ElementsAre(2));
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(plan.admitted, IsEmpty());
  EXPECT_TRUE(plan.short_of_blocks);
}

TEST(Planner, GrowthPreemptsTheLastInRank) {
  const StepPlan plan = Plan(State(0, {Decoding(1, 17), Decoding(2, 30), Decoding(3, 30)}), kNow);
  EXPECT_THAT(Ids(plan.preempted), ElementsAre(3));
  EXPECT_THAT(EntryIds(plan), ElementsAre(1, 2));
}

TEST(Planner, TheLastInRankSitsOutInsteadOfPreemptingThoseBeforeIt) {
  const StepPlan plan = Plan(State(0, {Decoding(1, 5), Decoding(2, 17)}), kNow);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(EntryIds(plan), ElementsAre(1));
  EXPECT_TRUE(plan.short_of_blocks);
}

TEST(Planner, AVictimInFlightGivesItsBlocksBackLaterAndIsNotTakenTwice) {
  SequenceView victim = Decoding(3, 30);
  victim.in_flight = true;
  StepPlan plan = Plan(State(0, {Decoding(1, 17), Decoding(2, 30), victim}), kNow);
  EXPECT_THAT(Ids(plan.preempted), ElementsAre(3));
  EXPECT_THAT(EntryIds(plan), ElementsAre(2));
  EXPECT_THAT(plan.grants, IsEmpty());

  victim.releasing = true;
  plan = Plan(State(0, {Decoding(1, 17), Decoding(2, 30), victim}), kNow);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(EntryIds(plan), ElementsAre(2));
}

TEST(Planner, TwoGrowersTakeTwoVictimsWhenOneDoesNotGiveEnough) {
  SequenceView a = Decoding(3, 5);
  SequenceView b = Decoding(4, 5);
  a.in_flight = b.in_flight = true;
  const StepPlan plan = Plan(State(0, {Decoding(1, 17), Decoding(2, 17), a, b}), kNow);
  EXPECT_THAT(Ids(plan.preempted), ElementsAre(4, 3));
}

TEST(Planner, ReservationsAndUnfinishedTransfersAreNeverPreempted) {
  SequenceView awaiting = Decoding(2, 100);
  awaiting.phase = SequencePhase::kAwaitingKv;
  SequenceView wired = Decoding(3, 100);
  wired.wired = true;
  const StepPlan plan = Plan(State(0, {Decoding(1, 17), awaiting, wired}), kNow);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(EntryIds(plan), ElementsAre(3));
}

TEST(Planner, PausedSequencesTakeNoPartAndKeepTheirBlocksForAWhile) {
  const SequenceView paused = Paused(Decoding(1, 30), kNow - seconds(1));
  const StepPlan plan = Plan(State(0, {paused, Decoding(2, 17)}), kNow);
  EXPECT_THAT(plan.entries, IsEmpty());
  EXPECT_THAT(plan.preempted, IsEmpty());
}

TEST(Planner, ALongPausedSequenceIsTheFirstVictimWhateverItsRank) {
  const SequenceView paused = Paused(Decoding(1, 30), kNow - seconds(2));
  StepPlan plan = Plan(State(0, {paused, Decoding(2, 17), Decoding(3, 5)}), kNow);
  EXPECT_THAT(Ids(plan.preempted), ElementsAre(1));
  EXPECT_THAT(EntryIds(plan), ElementsAre(2, 3));
  // It also makes way for a waiting one.
  plan = Plan(State(1, {paused, Waiting(2, 33)}), kNow);
  EXPECT_THAT(Ids(plan.preempted), ElementsAre(1));
  EXPECT_THAT(Ids(plan.admitted), ElementsAre(2));
}

TEST(Planner, AWaitingSequenceWithoutCreditIsNotAdmittedAndBlocksNobody) {
  SequenceView paused = Paused(Waiting(1, 480), kNow - seconds(9));
  paused.times_passed = 100;
  const StepPlan plan = Plan(State(2, {paused, Waiting(2, 16)}), kNow);
  EXPECT_THAT(Ids(plan.admitted), ElementsAre(2));
  EXPECT_THAT(plan.passed, IsEmpty());
}

TEST(Planner, NoMoreSequencesHoldBlocksThanOneStepTakes) {
  std::vector<SequenceView> sequences;
  for (uint64_t i = 1; i <= 7; ++i) sequences.push_back(Decoding(i, 5));
  sequences.push_back(Waiting(8, 2));
  sequences.push_back(Waiting(9, 2));
  const StepPlan plan = Plan(State(30, sequences), kNow);
  EXPECT_THAT(Ids(plan.admitted), ElementsAre(8));
  EXPECT_EQ(plan.entries.size(), 8u);
}

TEST(CheckReservation, FitsUnlessAnybodyLacksBlocksOrACapIsReached) {
  const auto check = [](const SchedulerState& state, int32_t blocks, bool is_short = false) {
    return CheckReservation(state, blocks, is_short) == ReservationAnswer::kFits;
  };
  EXPECT_TRUE(check(State(40, {}), 40));
  EXPECT_FALSE(check(State(39, {}), 40));
  EXPECT_FALSE(check(State(40, {}), 1, /*is_short=*/true));
  // The watermark is left to what runs.
  EXPECT_TRUE(check(State(10, {Decoding(1, 5)}), 9));
  EXPECT_FALSE(check(State(10, {Decoding(1, 5)}), 10));
  // Reservations together hold at most 20 blocks; one alone may hold more.
  SequenceView awaiting = Decoding(1, 160);
  awaiting.phase = SequencePhase::kAwaitingKv;
  EXPECT_TRUE(check(State(30, {awaiting}), 10));
  EXPECT_FALSE(check(State(30, {awaiting}), 11));
  EXPECT_TRUE(check(State(40, {Decoding(1, 2)}), 30));
  // Room in the running batch is reserved too.
  std::vector<SequenceView> eight;
  for (uint64_t i = 1; i <= 8; ++i) eight.push_back(Decoding(i, 5));
  EXPECT_FALSE(check(State(32, eight), 1));
}

}  // namespace
}  // namespace baton
