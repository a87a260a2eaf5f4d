// Decides what the next step computes: a pure function of the state it is shown. No clock, no I/O,
// no device call, so a stall can be replayed from a seed.
//
// Words. A sequence *waits* (holds no block), *awaits KV* (a reservation: holds blocks, takes no
// part in steps) or *runs* (holds blocks). Its rank is its id: ids grow in order of arrival, and a
// sequence keeps its rank when it is preempted. It is *paused* while it has no credit: nobody reads
// its tokens. A sequence *needs growth* when its next token's slot lies in a block it does not
// have.
//
// Rules:
//  1. Every running sequence that is not paused and has one token to compute (a decode) is in every
//     step, before anything else. Long prompts only share what is left of the token budget, so a
//     decode never waits longer than one step of at most tokens_per_step_max tokens.
//  2. Then chunks of running prompts, in order of rank; then admissions, in order of rank. A
//     sequence gets the blocks of all its tokens when it is admitted. While anything else holds
//     blocks, an admission leaves growth_watermark_blocks free.
//  3. A waiting sequence that does not fit may be passed by later ones that do, at most passes_max
//     times; then nobody is admitted before it. Small requests start at once behind a large one,
//     and the large one starts once the blocks of what ran before it and of at most passes_max
//     others come back. Nothing is admitted while a running sequence lacks a block.
//  4. When growth finds no free block, a victim is preempted (its blocks are dropped, its tokens
//  are
//     kept and computed again): first a sequence that has been paused for paused_hold or longer,
//     else the last in rank behind the one that grows. A victim that is part of a step in flight
//     gives its blocks back when that step is done; until then the one that grows sits out.
//  5. A waiting sequence that does not fit also preempts sequences paused for paused_hold or longer
//     (a paused sequence that was preempted waits until it has credit, so this cannot swing).
//  6. Sequences that await KV, and sequences whose transfer is not quiescent, are never preempted.
//     CheckReservation caps what reservations hold and refuses new ones while anybody lacks blocks.
//
// Progress. Let S be the first in rank of the sequences that are not paused and do not await KV. S
// is never preempted for another (rule 4) and is first to be admitted once it does not fit
// passes_max times (rule 3). Any block that S lacks is free, held by a later or long-paused
// sequence (preempted for S), or held by a reservation, a lease or a transfer, which end by
// deadline and, while S lacks blocks, are not replaced (rule 6). No sequence is larger than the
// pool (SequenceEngine::Validate). So S comes to its end, and so does everybody after it:
// preemption cannot livelock.
//
// Thread rule: pure functions of their arguments.
#ifndef BATON_ENGINE_SCHEDULER_PLANNER_H_
#define BATON_ENGINE_SCHEDULER_PLANNER_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/base/strong_id.h"

namespace baton {

enum class SequencePhase { kWaiting, kAwaitingKv, kRunning };

// What the planner knows of a sequence.
struct SequenceView {
  SequenceId id;  // Also its rank.
  SequencePhase phase = SequencePhase::kWaiting;
  // Tokens it has, those drawn by a step in flight included.
  int32_t num_tokens = 0;
  // Positions [0, num_scheduled) are computed or part of a step in flight.
  int32_t num_scheduled = 0;
  // It ends at this many tokens; the last of them is never computed.
  int32_t tokens_max = 0;
  int32_t num_blocks = 0;
  bool has_credit = true;
  TimePoint paused_since = kNever;  // Read when !has_credit.
  bool in_flight = false;           // Part of a step that has not been read.
  bool releasing = false;           // Preempted; its blocks come back with the step in flight.
  bool wired = false;               // Its transfer is not quiescent.
  int32_t times_passed = 0;
};

struct SchedulerLimits {
  int32_t tokens_per_step_max = 0;
  int32_t sequences_max = 0;  // Of a step, and holding blocks at a time.
  int32_t num_blocks = 0;
  int32_t block_tokens = 0;
  int32_t growth_watermark_blocks = 0;
  int32_t reserved_blocks_max = 0;
  int32_t passes_max = 0;
  Duration paused_hold = Duration::zero();
};

struct SchedulerState {
  SchedulerLimits limits;
  int32_t free_blocks = 0;
  std::vector<SequenceView> sequences;  // In order of rank.
};

// Positions [start_position, start_position + num_tokens) of a sequence; `sample`: they reach its
// last token, so the next one is drawn.
struct StepEntry {
  SequenceId id;
  int32_t start_position = 0;
  int32_t num_tokens = 0;
  bool sample = false;
};

struct BlockGrant {
  SequenceId id;
  int32_t num_blocks = 0;
};

// To be carried out in the order of the fields.
struct StepPlan {
  // Drop their blocks, or mark them as releasing when they are in flight; then they wait again.
  std::vector<SequenceId> preempted;
  // Blocks to allocate. The pool has them once `preempted` has been carried out.
  std::vector<BlockGrant> grants;
  std::vector<SequenceId> admitted;  // Waiting sequences that now run.
  std::vector<SequenceId> passed;    // times_passed goes up by one for each mention.
  std::vector<StepEntry> entries;    // At most one a sequence.
  // A running sequence lacks a block, or a waiting one does not fit.
  bool short_of_blocks = false;
};

// REQUIRES: limits are positive (watermark and reserved_blocks_max may be 0) and
// sequences_max <= tokens_per_step_max; sequences are in order of rank.
StepPlan Plan(const SchedulerState& state, TimePoint now);

enum class ReservationAnswer { kFits, kRetry };

// Whether a reservation of `num_blocks` may be made now. `short_of_blocks` is what the last plan
// said.
ReservationAnswer CheckReservation(const SchedulerState& state, int32_t num_blocks,
                                   bool short_of_blocks);

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_PLANNER_H_
