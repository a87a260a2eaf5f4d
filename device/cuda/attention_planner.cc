#include "device/cuda/attention_planner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {

using kernels::DecodeItem;
using kernels::PrefillKernel;
using kernels::PrefillWork;

absl::StatusOr<AttentionPlanner> AttentionPlanner::Create(const AttentionOp& op,
                                                          int32_t block_tokens,
                                                          const ProgramLimits& limits,
                                                          bool deterministic) {
  if (op.head_dim < 2 || op.head_dim % 2 != 0 || op.head_dim > kernels::kPrefillHeadDimMax) {
    return absl::InvalidArgumentError(absl::StrCat("attention with head_dim ", op.head_dim,
                                                   ": the CUDA kernels take even ones up to ",
                                                   kernels::kPrefillHeadDimMax));
  }
  AttentionPlanner planner;
  planner.sequences_max_ = limits.sequences_max;
  planner.prefill_ = {.kernel = kernels::PrefillSm90Supports(op.head_dim, block_tokens)
                                    ? PrefillKernel::kSm90
                                    : PrefillKernel::kMma,
                      .num_heads = op.num_heads,
                      .num_kv_heads = op.num_kv_heads,
                      .head_dim = op.head_dim,
                      .window = 0};
  planner.decode_.shape = {.num_heads = op.num_heads,
                           .num_kv_heads = op.num_kv_heads,
                           .head_dim = op.head_dim,
                           .query_length_max = kShortQueryMax,
                           .window = 0};
  // One kernel for every query is what makes bits independent of how a prompt is cut.
  if (!deterministic && op.head_dim % 8 == 0) {
    planner.decode_.grid_size = kernels::DecodeAttentionGrid(planner.decode_.shape);
    planner.has_decode_ = planner.decode_.grid_size > 0;
  }
  if (planner.has_decode_) {
    const int32_t sequences = limits.sequences_max;
    planner.decode_.items_max = kernels::DecodeItemsMax(planner.decode_, sequences);
    planner.decode_.partials_max = kernels::DecodePartialsMax(
        planner.decode_, sequences, int64_t{sequences} * limits.context_tokens_max);
  }
  return planner;
}

StepCounts AttentionPlanner::DecodeCounts(int32_t rows) const {
  StepCounts counts{.tokens = rows, .sequences = rows, .samples = rows};
  if (has_decode_) {
    counts.decode_plan_bytes =
        kernels::DecodeItemsMax(decode_, rows) * static_cast<int32_t>(sizeof(DecodeItem));
  } else {
    counts.prefill_work = static_cast<int32_t>(kernels::PrefillWorkMax(prefill_, rows, rows));
  }
  return counts;
}

StepCounts AttentionPlanner::CountsMax(int32_t tokens_max) const {
  StepCounts counts = DecodeCounts(sequences_max_);
  counts.tokens = std::max(tokens_max, sequences_max_);
  counts.prefill_work =
      static_cast<int32_t>(kernels::PrefillWorkMax(prefill_, counts.tokens, sequences_max_));
  return counts;
}

void AttentionPlanner::Plan(const StepMeta& meta, StepCounts* counts, bool* has_short,
                            bool* has_long) {
  SequenceLengths(meta, &query_lengths_, &kv_lengths_);
  padded_query_starts_ = meta.query_starts;
  padded_table_starts_ = meta.block_table_starts;
  *has_short = false;
  *has_long = false;
  for (int32_t& length : query_lengths_) {
    if (has_decode_ && length <= kShortQueryMax) {
      *has_short = true;
      length = 0;  // Not for the prefill kernel.
    } else {
      *has_long = true;
    }
  }
  prefill_work_.clear();
  if (*has_long) {
    kernels::PlanPrefillAttention(prefill_, query_lengths_, kv_lengths_, &prefill_work_);
  }
  decode_plan_.items.clear();
  if (*has_short) {
    while (static_cast<int32_t>(kv_lengths_.size()) < counts->sequences) {
      kv_lengths_.push_back(0);
      padded_query_starts_.push_back(padded_query_starts_.back() + 1);
      padded_table_starts_.push_back(padded_table_starts_.back());
    }
    const bool planned = kernels::PlanDecodeAttention(decode_,
                                                      {.query_starts = padded_query_starts_,
                                                       .kv_lengths = kv_lengths_,
                                                       .block_table_starts = padded_table_starts_},
                                                      &decode_plan_);
    CHECK(planned) << "a step beyond the program's limits: " << kv_lengths_.size() << " sequences";
  }
  counts->prefill_work = std::max(counts->prefill_work, static_cast<int32_t>(prefill_work_.size()));
  counts->decode_plan_bytes =
      std::max(counts->decode_plan_bytes,
               static_cast<int32_t>(decode_plan_.items.size() * sizeof(DecodeItem)));
}

void AttentionPlanner::Write(const StepCounts& counts, std::byte* block) const {
  const StepOffsets o = PlanStepBlock(counts);
  const auto num_work = static_cast<int32_t>(prefill_work_.size());
  CHECK_LE(num_work, counts.prefill_work);
  const size_t decode_bytes = decode_plan_.items.size() * sizeof(DecodeItem);
  CHECK_LE(decode_bytes, static_cast<size_t>(counts.decode_plan_bytes));
  std::memcpy(block + o.num_prefill_work, &num_work, sizeof(num_work));
  if (num_work > 0) {
    std::memcpy(block + o.prefill_work, prefill_work_.data(),
                prefill_work_.size() * sizeof(PrefillWork));
  }
  if (decode_bytes > 0) std::memcpy(block + o.decode_plan, decode_plan_.items.data(), decode_bytes);
}

}  // namespace baton
