#include "engine/runner/null_executor.h"

#include "common/base/check.h"

namespace baton {

absl::StatusOr<StepTicket> NullExecutor::Execute(const StepBatch& batch) {
  CHECK_LT(static_cast<int>(num_samples_.size()), kStepsInFlightMax);
  size_t samples = 0;
  for (const SequenceStep& step : batch.sequences) samples += step.sample ? 1 : 0;
  num_samples_.push_back(samples);
  return next_ticket_++;
}

absl::StatusOr<StepResult> NullExecutor::Wait(StepTicket ticket, Duration timeout) {
  CHECK(!num_samples_.empty());
  CHECK_EQ(ticket, next_ticket_ - num_samples_.size());
  StepResult result;
  result.samples.resize(num_samples_.front());
  for (SampledToken& token : result.samples) token.token_id = token_id_;
  num_samples_.pop_front();
  return result;
}

}  // namespace baton
