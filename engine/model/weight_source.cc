#include "engine/model/weight_source.h"

#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<WeightSegment> CheckpointSource::Segment(const std::string& name) const {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("tensor ", name, " is missing"));
  }
  if (tensor->shape.empty() || tensor->shape.size() > 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", name, " has ", tensor->shape.size(), " dimensions"));
  }
  return WeightSegment{.data = tensor->data,
                       .dtype = tensor->dtype,
                       .rows = tensor->shape[0],
                       .cols = tensor->shape.size() == 2 ? tensor->shape[1] : 1,
                       .random = std::nullopt};
}

}  // namespace baton
