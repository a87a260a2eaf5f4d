#include "engine/scheduler/step_pipeline.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton {

absl::Status StepPipeline::Launch(std::vector<StepEntry> entries, const StepBatch& batch) {
  CHECK(!full());
  CHECK_EQ(entries.size(), batch.sequences.size());
  CHECK(!entries.empty());
  ASSIGN_OR_RETURN(const StepTicket ticket, executor_->Execute(batch));
  Step step;
  step.ticket = ticket;
  for (const StepEntry& entry : entries) step.num_samples += entry.sample ? 1 : 0;
  step.entries = std::move(entries);
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void StepPipeline::Retire(RetiredBlocks retired) {
  CHECK(!steps_.empty());
  steps_.back().retired.push_back(std::move(retired));
}

absl::StatusOr<std::optional<CompletedStep>> StepPipeline::Collect(Duration timeout) {
  CHECK(!steps_.empty());
  absl::StatusOr<StepResult> result = executor_->Wait(steps_.front().ticket, timeout);
  if (absl::IsDeadlineExceeded(result.status())) return std::nullopt;
  RETURN_IF_ERROR(result.status());
  Step& step = steps_.front();
  if (result->samples.size() != step.num_samples) {
    return absl::InternalError(absl::StrCat("executor returned ", result->samples.size(),
                                            " samples for a step of ", step.num_samples));
  }
  CompletedStep done = {.entries = std::move(step.entries),
                        .result = *std::move(result),
                        .retired = std::move(step.retired)};
  steps_.pop_front();
  return std::optional<CompletedStep>(std::move(done));
}

int32_t StepPipeline::KvLayersReady() const {
  CHECK(!steps_.empty());
  return executor_->KvLayersReady(steps_.front().ticket);
}

absl::Span<const StepEntry> StepPipeline::oldest() const {
  CHECK(!steps_.empty());
  return steps_.front().entries;
}

std::vector<RetiredBlocks> StepPipeline::Abandon() {
  std::vector<RetiredBlocks> out;
  for (Step& step : steps_) {
    for (RetiredBlocks& retired : step.retired) out.push_back(std::move(retired));
  }
  steps_.clear();
  return out;
}

}  // namespace baton
