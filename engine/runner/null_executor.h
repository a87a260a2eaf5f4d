// A step costs nothing and every token is the same: what is measured with it is everything else.
#ifndef BATON_ENGINE_RUNNER_NULL_EXECUTOR_H_
#define BATON_ENGINE_RUNNER_NULL_EXECUTOR_H_

#include <cstdint>
#include <deque>

#include "engine/runner/step_executor.h"

namespace baton {

class NullExecutor : public StepExecutor {
 public:
  NullExecutor(const StepLimits& limits, int32_t token_id) : limits_(limits), token_id_(token_id) {}

  const StepLimits& limits() const override { return limits_; }
  absl::StatusOr<StepTicket> Execute(const StepBatch& batch) override;
  absl::StatusOr<StepResult> Wait(StepTicket ticket, Duration timeout) override;

 private:
  const StepLimits limits_;
  const int32_t token_id_;
  StepTicket next_ticket_ = 1;
  std::deque<size_t> num_samples_;  // Of the outstanding steps, oldest first.
};

}  // namespace baton

#endif  // BATON_ENGINE_RUNNER_NULL_EXECUTOR_H_
