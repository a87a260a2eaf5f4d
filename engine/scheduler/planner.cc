#include "engine/scheduler/planner.h"

#include <algorithm>

#include "common/base/check.h"
#include "engine/kvcache/block_table.h"

namespace baton {
namespace {

// Builds one plan. The state is not changed; what the plan takes and frees is counted beside it.
class PlanBuilder {
 public:
  PlanBuilder(const SchedulerState& state, TimePoint now)
      : state_(state),
        limits_(state.limits),
        now_(now),
        free_(state.free_blocks),
        budget_(limits_.tokens_per_step_max),
        gone_(state.sequences.size(), false) {
    CHECK_GT(limits_.tokens_per_step_max, 0);
    CHECK_GT(limits_.sequences_max, 0);
    CHECK_LE(limits_.sequences_max, limits_.tokens_per_step_max);
    CHECK_GT(limits_.block_tokens, 0);
    for (size_t i = 0; i < state.sequences.size(); ++i) {
      const SequenceView& s = state.sequences[i];
      CHECK(i == 0 || state.sequences[i - 1].id < s.id) << "sequences out of order of rank";
      if (s.phase != SequencePhase::kWaiting) ++holding_;
      if (s.releasing) releasing_ += s.num_blocks;
    }
  }

  StepPlan Build() && {
    AddDecodes();
    AddRunningPrompts();
    AdmitWaiting();
    return std::move(plan_);
  }

 private:
  // May take part in a step: it runs, somebody reads it, and there is something to compute.
  bool Runnable(const SequenceView& s) const {
    return s.phase == SequencePhase::kRunning && !s.releasing && s.has_credit &&
           s.num_scheduled < s.num_tokens && s.num_tokens < s.tokens_max;
  }

  bool LongPaused(const SequenceView& s) const {
    return !s.has_credit && s.paused_since != kNever &&
           SaturatingAdd(s.paused_since, limits_.paused_hold) <= now_;
  }

  bool MayBeVictim(size_t i) const {
    const SequenceView& s = state_.sequences[i];
    return s.phase == SequencePhase::kRunning && !s.releasing && !s.wired && s.num_blocks > 0 &&
           !gone_[i];
  }

  void Preempt(size_t i) {
    const SequenceView& s = state_.sequences[i];
    plan_.preempted.push_back(s.id);
    gone_[i] = true;
    if (s.in_flight) {
      releasing_ += s.num_blocks;
    } else {
      free_ += s.num_blocks;
      --holding_;
    }
  }

  // The last in rank of the long-paused. False when there is none.
  bool PreemptLongPaused(size_t for_index) {
    for (size_t i = state_.sequences.size(); i-- > 0;) {
      if (i == for_index || !MayBeVictim(i) || !LongPaused(state_.sequences[i])) continue;
      Preempt(i);
      return true;
    }
    return false;
  }

  // The last in rank behind `for_index`. Those behind it are not in the plan yet.
  bool PreemptLater(size_t for_index) {
    for (size_t i = state_.sequences.size(); i-- > for_index + 1;) {
      if (!MayBeVictim(i)) continue;
      Preempt(i);
      return true;
    }
    return false;
  }

  // Finds blocks for the growth of a decode. False: it sits this step out.
  bool Grow(size_t index, int32_t num_blocks) {
    while (free_ < num_blocks) {
      // What is on its way back already is enough: take no more victims.
      if (free_ + releasing_ >= num_blocks + awaited_) break;
      if (!PreemptLongPaused(index) && !PreemptLater(index)) break;
    }
    if (free_ < num_blocks) {
      awaited_ += num_blocks;
      plan_.short_of_blocks = true;
      return false;
    }
    free_ -= num_blocks;
    plan_.grants.push_back({state_.sequences[index].id, num_blocks});
    return true;
  }

  void AddEntry(const SequenceView& s, int32_t num_tokens) {
    plan_.entries.push_back({.id = s.id,
                             .start_position = s.num_scheduled,
                             .num_tokens = num_tokens,
                             .sample = s.num_scheduled + num_tokens == s.num_tokens});
    budget_ -= num_tokens;
  }

  bool Full() const {
    return budget_ == 0 || static_cast<int32_t>(plan_.entries.size()) >= limits_.sequences_max;
  }

  void AddDecodes() {
    for (size_t i = 0; i < state_.sequences.size() && !Full(); ++i) {
      const SequenceView& s = state_.sequences[i];
      if (gone_[i] || !Runnable(s) || s.num_tokens - s.num_scheduled != 1) continue;
      const int32_t need =
          BlocksForTokens(s.num_scheduled + 1, limits_.block_tokens) - s.num_blocks;
      if (need > 0 && !Grow(i, need)) continue;
      AddEntry(s, 1);
    }
  }

  void AddRunningPrompts() {
    for (size_t i = 0; i < state_.sequences.size() && !Full(); ++i) {
      const SequenceView& s = state_.sequences[i];
      if (gone_[i] || !Runnable(s) || s.num_tokens - s.num_scheduled == 1) continue;
      AddEntry(s, std::min(budget_, s.num_tokens - s.num_scheduled));
    }
  }

  // Blocks that an admission must leave free.
  int32_t Watermark() const { return holding_ > 0 ? limits_.growth_watermark_blocks : 0; }

  void AdmitWaiting() {
    if (awaited_ > 0) return;
    std::vector<SequenceId> unfit;
    int32_t passes_left = 0;  // Of those in `unfit`, the fewest; read when there are any.
    for (size_t i = 0; i < state_.sequences.size(); ++i) {
      const SequenceView& s = state_.sequences[i];
      if (s.phase != SequencePhase::kWaiting || !s.has_credit) continue;
      if (Full() || holding_ >= limits_.sequences_max) return;
      const int32_t need = BlocksForTokens(s.num_tokens, limits_.block_tokens);
      // Only the first that does not fit takes blocks of paused sequences.
      while (unfit.empty() && need + Watermark() > free_ + releasing_ && PreemptLongPaused(i)) {
      }
      if (need + Watermark() > free_) {
        plan_.short_of_blocks = true;
        const int32_t left = limits_.passes_max - s.times_passed;
        passes_left = unfit.empty() ? left : std::min(passes_left, left);
        if (passes_left <= 0) return;
        unfit.push_back(s.id);
        continue;
      }
      free_ -= need;
      ++holding_;
      plan_.grants.push_back({s.id, need});
      plan_.admitted.push_back(s.id);
      plan_.passed.insert(plan_.passed.end(), unfit.begin(), unfit.end());
      AddEntry(s, std::min(budget_, s.num_tokens));
      if (!unfit.empty() && --passes_left <= 0) return;
    }
  }

  const SchedulerState& state_;
  const SchedulerLimits& limits_;
  const TimePoint now_;
  int32_t free_;            // Blocks that this plan may still give out.
  int32_t releasing_ = 0;   // Blocks that come back with the step in flight.
  int32_t awaited_ = 0;     // Blocks that sequences which sit out are waiting for.
  int32_t holding_ = 0;     // Sequences that hold blocks.
  int32_t budget_;          // Tokens left in the step.
  std::vector<bool> gone_;  // By index: preempted by this plan.
  StepPlan plan_;
};

}  // namespace

StepPlan Plan(const SchedulerState& state, TimePoint now) {
  return PlanBuilder(state, now).Build();
}

ReservationAnswer CheckReservation(const SchedulerState& state, int32_t num_blocks,
                                   bool short_of_blocks) {
  int32_t holding = 0;
  int32_t reserved = 0;
  for (const SequenceView& s : state.sequences) {
    if (s.phase != SequencePhase::kWaiting) ++holding;
    if (s.phase == SequencePhase::kAwaitingKv) reserved += s.num_blocks;
  }
  const SchedulerLimits& limits = state.limits;
  if (short_of_blocks || holding >= limits.sequences_max) return ReservationAnswer::kRetry;
  if (reserved > 0 && reserved + num_blocks > limits.reserved_blocks_max) {
    return ReservationAnswer::kRetry;
  }
  const int32_t watermark = holding > 0 ? limits.growth_watermark_blocks : 0;
  return num_blocks + watermark <= state.free_blocks ? ReservationAnswer::kFits
                                                     : ReservationAnswer::kRetry;
}

}  // namespace baton
