// Where a model's weights come from: a checkpoint, or nowhere (synthetic.h).
#ifndef BATON_ENGINE_MODEL_WEIGHT_SOURCE_H_
#define BATON_ENGINE_MODEL_WEIGHT_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "engine/weights/checkpoint.h"

namespace baton {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The tensor of that name (Hugging Face's). What it points to lives as long as the source.
  // ERRORS: FailedPrecondition naming the tensor: missing, or of more than two dimensions.
  virtual absl::StatusOr<WeightSegment> Segment(const std::string& name) const = 0;
};

class CheckpointSource : public WeightSource {
 public:
  // `checkpoint` must outlive the source.
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  absl::StatusOr<WeightSegment> Segment(const std::string& name) const override;

 private:
  const Checkpoint& checkpoint_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_WEIGHT_SOURCE_H_
