#include "device/cuda/kv_marks.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton {

absl::StatusOr<std::unique_ptr<KvMarks>> KvMarks::Create(int32_t num_layers, CudaContext& context) {
  auto marks = std::make_unique<KvMarks>(Private{}, num_layers, context);
  for (int32_t i = 0; i < kKvMarksMax; ++i) {
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
  layers_.clear();
  fired_ = 0;
}

absl::StatusOr<bool> KvMarks::Record(int32_t layer) {
  const int32_t group = (num_layers_ + kKvMarksMax - 1) / kKvMarksMax;
  const int32_t layers = layer + 1;
  // The last layer too: behind its KV come its attention, its products and the head, in whose time
  // a hand-over can end.
  if (layers % group != 0 && layers != num_layers_) return false;
  CHECK_LT(layers_.size(), events_.size());
  RETURN_IF_ERROR(context_.Check(cudaEventRecord(events_[layers_.size()], context_.stream()),
                                 "recording an event"));
  layers_.push_back(layers);
  return true;
}

int32_t KvMarks::LayersReady() {
  while (fired_ < layers_.size() && cudaEventQuery(events_[fired_]) == cudaSuccess) ++fired_;
  return fired_ == 0 ? 0 : layers_[fired_ - 1];
}

}  // namespace baton
