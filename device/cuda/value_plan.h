// Types, strides and places of a list's values on the GPU: the residual stream, angles and logits
// in float32, everything else in 16 bits; rows padded to multiples of 8 elements. Pure.
#ifndef BATON_DEVICE_CUDA_VALUE_PLAN_H_
#define BATON_DEVICE_CUDA_VALUE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/ops.h"

namespace baton {

struct ValuePlace {
  bool is_f32 = false;
  int64_t stride = 0;  // Elements from a row to the next.
  int64_t offset = 0;  // Bytes, in the workspace.
};

struct ValuePlan {
  std::vector<ValuePlace> values;
  int64_t bytes = 0;
};

// For up to so many rows. ERRORS: InvalidArgument naming the operation by index: a list that would
// need another type (an embedding that is no residual, an AddNorm whose delta is one, ...) or a
// width that the kernels do not take.
absl::StatusOr<ValuePlan> PlanValues(const OpList& list, int32_t num_tokens, int32_t num_samples);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_VALUE_PLAN_H_
