// Goal: whatever the state, a plan keeps the promises that the engine builds on. Method: random
// states from seeds; every promise is checked on every plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "engine/kvcache/block_table.h"
#include "engine/scheduler/planner.h"

namespace baton {
namespace {

constexpr TimePoint kNow{std::chrono::seconds(100)};

SchedulerState RandomState(std::mt19937& random) {
  const auto pick = [&](int32_t low, int32_t high) {
    return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  SchedulerState state;
  SchedulerLimits& limits = state.limits;
  limits.num_blocks = pick(4, 40);
  limits.block_tokens = 1 << pick(0, 4);
  limits.sequences_max = pick(1, 12);
  limits.tokens_per_step_max = limits.sequences_max + pick(0, 40);
  limits.growth_watermark_blocks = pick(0, 3);
  limits.reserved_blocks_max = limits.num_blocks / 2;
  limits.passes_max = pick(0, 4);
  limits.paused_hold = std::chrono::seconds(pick(0, 3));
  state.free_blocks = limits.num_blocks;
  const int32_t context = limits.num_blocks * limits.block_tokens + 1;
  int32_t holding = 0;
  for (uint64_t id = 1; id <= 16; ++id) {
    SequenceView s;
    s.id = SequenceId(id * 3);
    s.tokens_max = pick(2, context);
    s.num_tokens = pick(1, s.tokens_max - 1);
    s.has_credit = pick(0, 3) > 0;
    if (!s.has_credit) s.paused_since = kNow - std::chrono::seconds(pick(0, 5));
    s.times_passed = pick(0, 5);
    const int32_t blocks = BlocksForTokens(s.num_tokens, limits.block_tokens);
    const bool holds =
        pick(0, 1) == 0 && blocks <= state.free_blocks && holding < limits.sequences_max;
    if (holds) {
      ++holding;
      s.num_scheduled = pick(0, 1) == 0 ? s.num_tokens - 1 : pick(0, s.num_tokens - 1);
      s.num_blocks = s.num_scheduled == s.num_tokens - 1
                         ? std::max(1, BlocksForTokens(s.num_scheduled, limits.block_tokens))
                         : blocks;
      s.phase = pick(0, 4) == 0 ? SequencePhase::kAwaitingKv : SequencePhase::kRunning;
      s.in_flight = s.phase == SequencePhase::kRunning && pick(0, 1) == 0;
      s.releasing = s.in_flight && pick(0, 4) == 0;
      s.wired = s.phase == SequencePhase::kAwaitingKv || pick(0, 8) == 0;
      state.free_blocks -= s.num_blocks;
    }
    state.sequences.push_back(s);
  }
  // Leases and quarantine.
  state.free_blocks -= state.free_blocks > 0 ? pick(0, state.free_blocks) / 3 : 0;
  return state;
}

void CheckPlan(const SchedulerState& state, const StepPlan& plan) {
  const SchedulerLimits& limits = state.limits;
  std::map<SequenceId, SequenceView> by_id;
  for (const SequenceView& s : state.sequences) by_id[s.id] = s;
  const std::set<SequenceId> admitted(plan.admitted.begin(), plan.admitted.end());
  const std::set<SequenceId> preempted(plan.preempted.begin(), plan.preempted.end());
  EXPECT_EQ(admitted.size(), plan.admitted.size());
  EXPECT_EQ(preempted.size(), plan.preempted.size());

  int32_t free = state.free_blocks;
  for (SequenceId id : plan.preempted) {
    const SequenceView& s = by_id[id];
    EXPECT_TRUE(s.phase == SequencePhase::kRunning && !s.releasing && !s.wired) << id;
    if (!s.in_flight) free += s.num_blocks;
  }
  for (const BlockGrant& grant : plan.grants) {
    EXPECT_GT(grant.num_blocks, 0);
    by_id[grant.id].num_blocks += grant.num_blocks;
    free -= grant.num_blocks;
  }
  EXPECT_GE(free, 0) << "more blocks given out than there are";

  int32_t tokens = 0;
  std::set<SequenceId> in_step;
  for (const StepEntry& entry : plan.entries) {
    const SequenceView& s = by_id[entry.id];
    EXPECT_TRUE(in_step.insert(entry.id).second) << "twice in a step: " << entry.id;
    EXPECT_FALSE(preempted.contains(entry.id));
    EXPECT_TRUE(s.has_credit && !s.releasing && s.phase != SequencePhase::kAwaitingKv);
    EXPECT_EQ(s.phase == SequencePhase::kWaiting, admitted.contains(entry.id));
    EXPECT_EQ(entry.start_position, s.num_scheduled);
    EXPECT_GT(entry.num_tokens, 0);
    EXPECT_LE(entry.start_position + entry.num_tokens, s.num_tokens);
    EXPECT_EQ(entry.sample, entry.start_position + entry.num_tokens == s.num_tokens);
    EXPECT_GE(s.num_blocks,
              BlocksForTokens(entry.start_position + entry.num_tokens, limits.block_tokens));
    tokens += entry.num_tokens;
  }
  EXPECT_LE(tokens, limits.tokens_per_step_max);
  EXPECT_LE(static_cast<int32_t>(plan.entries.size()), limits.sequences_max);
  for (SequenceId id : plan.admitted) EXPECT_TRUE(in_step.contains(id));
  for (SequenceId id : plan.passed) EXPECT_LE(++by_id[id].times_passed, limits.passes_max);

  // Every decode that may run is in the step, unless it was a victim or waits for a block (SCH-06).
  for (const SequenceView& s : state.sequences) {
    const bool decode = s.phase == SequencePhase::kRunning && s.has_credit && !s.releasing &&
                        s.num_tokens - s.num_scheduled == 1 && s.num_tokens < s.tokens_max;
    if (!decode || in_step.contains(s.id) || preempted.contains(s.id)) continue;
    EXPECT_GT(BlocksForTokens(s.num_tokens, limits.block_tokens), s.num_blocks) << s.id;
    EXPECT_TRUE(plan.short_of_blocks);
  }
  // The first waiting sequence that fits an otherwise empty engine is started (SCH-02).
  const bool nothing_holds =
      std::all_of(state.sequences.begin(), state.sequences.end(),
                  [](const SequenceView& s) { return s.phase == SequencePhase::kWaiting; });
  for (const SequenceView& s : state.sequences) {
    if (!nothing_holds || !s.has_credit) continue;
    if (BlocksForTokens(s.num_tokens, limits.block_tokens) <= state.free_blocks) {
      EXPECT_TRUE(in_step.contains(s.id)) << s.id;
    }
    break;
  }
}

TEST(PlannerProperty, EveryPlanOfARandomStateKeepsItsPromises) {
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const SchedulerState state = RandomState(random);
    CheckPlan(state, Plan(state, kNow));
    ASSERT_FALSE(HasFailure()) << "failing seed " << seed;
  }
}

TEST(PlannerProperty, TheSameStateGivesTheSamePlan) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const SchedulerState state = RandomState(random);
    const StepPlan a = Plan(state, kNow);
    const StepPlan b = Plan(state, kNow);
    ASSERT_EQ(a.preempted, b.preempted) << "failing seed " << seed;
    ASSERT_EQ(a.admitted, b.admitted) << "failing seed " << seed;
    ASSERT_EQ(a.entries.size(), b.entries.size()) << "failing seed " << seed;
    for (size_t i = 0; i < a.entries.size(); ++i) {
      ASSERT_EQ(a.entries[i].id, b.entries[i].id);
      ASSERT_EQ(a.entries[i].num_tokens, b.entries[i].num_tokens);
    }
  }
}

}  // namespace
}  // namespace baton
