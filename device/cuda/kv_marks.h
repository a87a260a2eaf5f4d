// How far a step has written KV, layer by layer: events between its kernels. A kernel behind an
// event does not overlap the one before it, so there are few of them (kv_mark_layers.h), and none
// unless asked for.
//
// Thread rule: owned by the owner of its program.
#ifndef BATON_DEVICE_CUDA_KV_MARKS_H_
#define BATON_DEVICE_CUDA_KV_MARKS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/kv_mark_layers.h"

namespace baton {

class KvMarks {
  struct Private {};

 public:
  static absl::StatusOr<std::unique_ptr<KvMarks>> Create(int32_t num_layers, CudaContext& context);
  KvMarks(Private, int32_t num_layers, CudaContext& context)
      : layers_(KvMarkLayers(num_layers)), context_(context) {}
  ~KvMarks();

  // Of a new step: nothing is ready. REQUIRES: the step of the last events has ended.
  void Clear();
  // The KV of `layer` is written by what the stream has been given. True: an event follows it now.
  // REQUIRES: layers come in order.
  absl::StatusOr<bool> Record(int32_t layer);
  // Layers [0, n) are in the pool.
  int32_t LayersReady();

 private:
  const std::vector<int32_t> layers_;  // Ready when the event of the same number has fired.
  CudaContext& context_;
  std::vector<cudaEvent_t> events_;
  size_t recorded_ = 0;  // Of this step.
  size_t fired_ = 0;
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_KV_MARKS_H_
