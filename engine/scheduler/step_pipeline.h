// Keeps the steps in flight on one StepExecutor in order: launches up to kStepsInFlightMax of them,
// collects the oldest, and holds blocks that may not be used again before a step is done.
//
// Thread rule: owned by the EngineLoop thread.
#ifndef BATON_ENGINE_SCHEDULER_STEP_PIPELINE_H_
#define BATON_ENGINE_SCHEDULER_STEP_PIPELINE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/strong_id.h"
#include "engine/runner/step_executor.h"
#include "engine/scheduler/planner.h"

namespace baton {

// Blocks of a sequence that is gone but was part of a step in flight.
struct RetiredBlocks {
  SequenceId owner;
  std::vector<BlockId> blocks;
};

struct CompletedStep {
  std::vector<StepEntry> entries;
  StepResult result;
  // Nothing in flight uses them any more.
  std::vector<RetiredBlocks> retired;
};

class StepPipeline {
 public:
  // `executor` outlives the pipeline.
  explicit StepPipeline(StepExecutor* executor) : executor_(executor) {}

  int steps_in_flight() const { return static_cast<int>(steps_.size()); }
  bool full() const { return steps_in_flight() >= kStepsInFlightMax; }

  // Starts a step; `entries` describes `batch` entry by entry. ERRORS: the executor's.
  // REQUIRES: !full().
  absl::Status Launch(std::vector<StepEntry> entries, const StepBatch& batch);

  // Holds blocks until the newest step in flight is done. REQUIRES: steps_in_flight() > 0.
  void Retire(RetiredBlocks retired);

  // Waits up to `timeout` for the oldest step; nothing when it is not done. ERRORS: the executor's,
  // or Internal when the result does not match the step; then the device is not to be used any
  // more. REQUIRES: steps_in_flight() > 0.
  absl::StatusOr<std::optional<CompletedStep>> Collect(Duration timeout);

  // Of the oldest step. REQUIRES: steps_in_flight() > 0.
  int32_t KvLayersReady() const;
  absl::Span<const StepEntry> oldest() const;

  // Forgets the steps in flight of a device that has failed and gives back what they held.
  std::vector<RetiredBlocks> Abandon();

 private:
  struct Step {
    StepTicket ticket = 0;
    std::vector<StepEntry> entries;
    size_t num_samples = 0;
    std::vector<RetiredBlocks> retired;
  };

  StepExecutor* const executor_;
  std::deque<Step> steps_;  // Oldest first.
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_STEP_PIPELINE_H_
