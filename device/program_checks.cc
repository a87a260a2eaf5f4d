#include "device/program_checks.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

absl::Status CheckBuckets(absl::Span<const int32_t> buckets, const ProgramLimits& limits) {
  int32_t previous = 0;
  for (const int32_t bucket : buckets) {
    if (bucket <= previous) return absl::InvalidArgumentError("buckets are not ascending");
    previous = bucket;
  }
  if (buckets.empty()) return absl::InvalidArgumentError("no buckets");
  if (limits.sequences_max < 1 || limits.samples_max < 1 || limits.context_tokens_max < 1) {
    return absl::InvalidArgumentError("program limits must be positive");
  }
  return absl::OkStatus();
}

absl::Status CheckKv(const OpList& list, const KvLayout& layout) {
  for (const Op& op : list.ops) {
    const auto* write = std::get_if<RopeKvWriteOp>(&op);
    const auto* read = std::get_if<AttentionOp>(&op);
    if (write == nullptr && read == nullptr) continue;
    const int32_t heads = write != nullptr ? write->num_kv_heads : read->num_kv_heads;
    const int32_t dim = write != nullptr ? write->head_dim : read->head_dim;
    if (heads != layout.num_kv_heads || dim != layout.head_dim) {
      return absl::InvalidArgumentError(absl::StrCat(OpName(op), " with ", heads, " KV heads of ",
                                                     dim, " on a pool of ", layout.Fingerprint()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProgram(const OpList& list, absl::Span<const int32_t> buckets,
                          const ProgramLimits& limits, const KvLayout& layout) {
  RETURN_IF_ERROR(CheckOps(list, layout.num_layers));
  RETURN_IF_ERROR(CheckKv(list, layout));
  return CheckBuckets(buckets, limits);
}

}  // namespace baton
