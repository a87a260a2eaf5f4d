#include "device/cuda/kv_marks.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton {

absl::StatusOr<std::unique_ptr<KvMarks>> KvMarks::Create(int32_t num_layers, CudaContext& context) {
  auto marks = std::make_unique<KvMarks>(Private{}, num_layers, context);
  for (size_t i = 0; i < marks->layers_.size(); ++i) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(
        context.Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
    marks->events_.push_back(event);
  }
  return marks;
}

KvMarks::~KvMarks() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void KvMarks::Clear() {
  recorded_ = 0;
  fired_ = 0;
}

absl::StatusOr<bool> KvMarks::Record(int32_t layer) {
  CHECK_LT(recorded_, layers_.size());
  if (layer + 1 != layers_[recorded_]) return false;
  RETURN_IF_ERROR(
      context_.Check(cudaEventRecord(events_[recorded_], context_.stream()), "recording an event"));
  ++recorded_;
  return true;
}

int32_t KvMarks::LayersReady() {
  while (fired_ < recorded_ && cudaEventQuery(events_[fired_]) == cudaSuccess) ++fired_;
  return fired_ == 0 ? 0 : layers_[fired_ - 1];
}

}  // namespace baton
