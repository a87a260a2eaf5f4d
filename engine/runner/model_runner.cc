#include "engine/runner/model_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

static_assert(kTopLogprobsMax == kernels::kSampleTopLogprobsMax);
static_assert(kStepsInFlightMax <= Program::kInFlightMax);

// A step ends; a device that does not answer for that long is lost.
constexpr Duration kEvaluationLimit = std::chrono::minutes(10);

kernels::SampleParams ToKernel(const SamplingParams& p, int32_t position) {
  return {.temperature = p.temperature,
          .top_k = p.top_k,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .noise = {.seed = p.seed,
                    .sample_index = p.sample_index,
                    .position = static_cast<uint32_t>(position)},
          .logprobs = p.logprobs,
          .num_top_logprobs = p.num_top_logprobs};
}

SampledToken ToToken(const kernels::SampleResult& r) {
  SampledToken token{
      .token_id = r.token, .logprob = r.logprob, .finite = r.finite, .top_logprobs = {}};
  for (int32_t i = 0; i < r.num_top_logprobs; ++i) {
    token.top_logprobs.push_back({r.top_ids[i], r.top_logprobs[i]});
  }
  return token;
}

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<Program> program, const KvPool& kv,
                         const StepLimits& limits, int32_t logit_cols)
    : kv_(kv), limits_(limits), logit_cols_(logit_cols), program_(std::move(program)) {}

void ModelRunner::AppendSequence(const SequenceStep& sequence) {
  const int32_t block_tokens = kv_.layout().block_tokens;
  const auto num_tokens =
      sequence.from_previous_step ? 1 : static_cast<int32_t>(sequence.token_ids.size());
  const int32_t end = sequence.start_position + num_tokens;
  CHECK(num_tokens >= 1 && sequence.start_position >= 0) << "an empty sequence step";
  CHECK_LE(end, limits_.context_tokens_max);
  CHECK_GE(static_cast<int64_t>(sequence.block_table.size()) * block_tokens, int64_t{end});
  if (sequence.from_previous_step) {
    CHECK(sequence.previous_sample >= 0 && sequence.previous_sample < samples_of_last_step_)
        << "sample " << sequence.previous_sample << " of " << samples_of_last_step_;
    meta_.token_source.push_back(-1 - sequence.previous_sample);
  } else {
    // A negative id must not be taken for a sample of the last step; like any id outside the
    // vocabulary it poisons its own sequence.
    for (const int32_t id : sequence.token_ids) {
      meta_.token_source.push_back(id >= 0 ? id : INT32_MAX);
    }
  }
  for (int32_t position = sequence.start_position; position < end; ++position) {
    const BlockId block = sequence.block_table[static_cast<size_t>(position / block_tokens)];
    meta_.positions.push_back(position);
    meta_.kv_slots.push_back(int64_t{block.value} * block_tokens + position % block_tokens);
  }
  for (const BlockId block : sequence.block_table) {
    CHECK(block.value >= 0 && block.value < kv_.num_blocks()) << "block " << block;
    meta_.block_tables.push_back(block.value);
  }
  meta_.query_starts.push_back(static_cast<int32_t>(meta_.positions.size()));
  meta_.block_table_starts.push_back(static_cast<int32_t>(meta_.block_tables.size()));
}

void ModelRunner::AppendSample(const SequenceStep& sequence, int32_t token, int32_t first_row) {
  meta_.sample_rows.push_back(first_row + token);
  meta_.sampling.push_back(ToKernel(sequence.sampling, sequence.start_position + token + 1));
}

absl::StatusOr<DeviceTicket> ModelRunner::Enqueue() {
  const auto num_tokens = static_cast<int32_t>(meta_.positions.size());
  CHECK_LE(num_tokens, limits_.tokens_max);
  const auto buckets = program_->buckets();
  const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), num_tokens);
  auto ticket = program_->Enqueue(static_cast<int>(bucket - buckets.begin()), meta_);
  if (!ticket.ok()) {
    failure_ = Annotate(ticket.status(), "the model's device failed");
    return failure_;
  }
  samples_of_last_step_ = static_cast<int32_t>(meta_.sample_rows.size());
  ++num_outstanding_;
  return ticket;
}

absl::StatusOr<StepTicket> ModelRunner::Execute(const StepBatch& batch) {
  thread_.Check();
  CHECK_LT(num_outstanding_, kStepsInFlightMax);
  CHECK(!batch.sequences.empty() &&
        batch.sequences.size() <= static_cast<size_t>(limits_.sequences_max));
  RETURN_IF_ERROR(failure_);
  meta_.Clear();
  meta_.query_starts.push_back(0);
  meta_.block_table_starts.push_back(0);
  meta_.report_kv_layers = batch.report_kv_layers;
  for (const SequenceStep& sequence : batch.sequences) {
    const auto first_row = static_cast<int32_t>(meta_.positions.size());
    AppendSequence(sequence);
    const auto num_tokens = static_cast<int32_t>(meta_.positions.size()) - first_row;
    if (sequence.sample) AppendSample(sequence, num_tokens - 1, first_row);
  }
  return Enqueue();
}

absl::StatusOr<StepResult> ModelRunner::Wait(StepTicket ticket, Duration timeout) {
  thread_.Check();
  CHECK_GT(num_outstanding_, 0);
  absl::StatusOr<StepOutputs> outputs = program_->Wait(ticket, timeout);
  if (!outputs.ok()) {
    if (outputs.status().code() == absl::StatusCode::kDeadlineExceeded) return outputs.status();
    --num_outstanding_;
    failure_ = Annotate(outputs.status(), "the model's device failed");
    return failure_;
  }
  --num_outstanding_;
  StepResult result;
  result.samples.reserve(outputs->samples.size());
  for (const kernels::SampleResult& sample : outputs->samples) {
    result.samples.push_back(ToToken(sample));
  }
  return result;
}

int32_t ModelRunner::KvLayersReady(StepTicket ticket) {
  thread_.Check();
  return program_->KvLayersReady(ticket);
}

absl::StatusOr<std::vector<float>> ModelRunner::ComputeLogits(const SequenceStep& sequence,
                                                              absl::Span<const int32_t> rows) {
  thread_.Check();
  CHECK_EQ(num_outstanding_, 0);
  CHECK_LE(rows.size(), static_cast<size_t>(limits_.sequences_max));
  RETURN_IF_ERROR(failure_);
  meta_.Clear();
  meta_.query_starts.push_back(0);
  meta_.block_table_starts.push_back(0);
  meta_.return_logits = true;
  AppendSequence(sequence);
  for (const int32_t row : rows) {
    CHECK(row >= 0 && static_cast<size_t>(row) < meta_.positions.size()) << row;
    AppendSample(sequence, row, 0);
  }
  ASSIGN_OR_RETURN(const DeviceTicket ticket, Enqueue());
  absl::StatusOr<StepOutputs> outputs = program_->Wait(ticket, kEvaluationLimit);
  // Even a step that is given up must be waited for before the next one.
  if (!outputs.ok()) {
    failure_ = Annotate(outputs.status(), "the model's device failed");
    return failure_;
  }
  --num_outstanding_;
  return std::move(outputs->logits);
}

}  // namespace baton
