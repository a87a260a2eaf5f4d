// Places values in one workspace so that values alive at the same operation never overlap. Pure.
#ifndef BATON_DEVICE_WORKSPACE_PLAN_H_
#define BATON_DEVICE_WORKSPACE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "device/ops.h"

namespace baton {

struct WorkspacePlan {
  // Byte offset of each value of the list; aligned to kWorkspaceAlignment. -1: never used.
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};

inline constexpr int64_t kWorkspaceAlignment = 256;

// A value is alive from the first operation that names it to the last. First fit by first use,
// after Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020 (their
// greedy by order of operations).
// `row_bytes`: of each value of the list.
WorkspacePlan PlanWorkspace(const OpList& list, int64_t num_tokens, int64_t num_samples,
                            absl::Span<const int64_t> row_bytes);

}  // namespace baton

#endif  // BATON_DEVICE_WORKSPACE_PLAN_H_
