#include "engine/scheduler/sequence.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {
namespace {

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

SequenceView Sequence::View() const {
  return {.id = id,
          .phase = phase,
          .num_tokens = num_tokens(),
          .num_scheduled = num_scheduled,
          .tokens_max = tokens_max,
          .num_blocks = static_cast<int32_t>(block_table.size()),
          .has_credit = has_credit(),
          .paused_since = paused_since,
          .in_flight = steps_in_flight > 0,
          .releasing = releasing,
          .wired = wired,
          .times_passed = times_passed};
}

std::optional<FinishReason> AppendToken(Sequence& sequence, int32_t token_id) {
  CHECK(!sequence.finished) << "token for finished sequence " << sequence.id;
  CHECK_LT(static_cast<int32_t>(sequence.tokens.size()), sequence.tokens_max);
  sequence.tokens.push_back(token_id);
  std::optional<FinishReason> reason;
  if (Contains(sequence.spec.eos_token_ids, token_id)) {
    reason = FinishReason::kEos;
  } else if (Contains(sequence.spec.stop_token_ids, token_id)) {
    reason = FinishReason::kStopToken;
  } else if (static_cast<int32_t>(sequence.tokens.size()) >= sequence.tokens_max) {
    reason = FinishReason::kLength;
  }
  sequence.finished = reason.has_value();
  return reason;
}

}  // namespace baton
