// Which of several algorithms is the quickest for a product: all are timed in turn, round after
// round, with a cold L2, and those that fall behind drop out. In turn, because products of many
// rows draw the full power: the clock falls by a sixth within 100 ms, and whoever is timed first
// looks best.
//
// Waits for the device and allocates: for load time. Thread-compatible.
#ifndef BATON_DEVICE_CUDA_MATMUL_MATMUL_TIMER_H_
#define BATON_DEVICE_CUDA_MATMUL_MATMUL_TIMER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "device/cuda/matmul/matmul_library.h"
#include "device/cuda/matmul/matmul_plan_cache.h"
#include "kernels/launch/launch.h"

namespace baton::cuda {

class MatmulTimer {
  struct Private {};

 public:
  // Makes inputs and outputs of up to `rows_max` rows. `w`: weights to time with, which must
  // outlive the timer, like `library`; null: random ones are made. ERRORS: ResourceExhausted: no
  // memory on the GPU; Internal: the device.
  static absl::StatusOr<std::unique_ptr<MatmulTimer>> Create(const MatmulLibrary& library,
                                                             const MatmulShape& shape,
                                                             int32_t rows_max, const void* w,
                                                             kernels::CudaStream stream);
  MatmulTimer(Private, const MatmulLibrary& library, const MatmulShape& shape,
              kernels::CudaStream stream)
      : library_(library), shape_(shape), stream_(stream) {}
  ~MatmulTimer();
  MatmulTimer(const MatmulTimer&) = delete;
  MatmulTimer& operator=(const MatmulTimer&) = delete;

  // The quickest of `candidates`, with its time; of near ties with many rows the first. After
  // `deadline` the best so far. ERRORS: Unimplemented: none runs; Internal: the device.
  // REQUIRES: rows <= rows_max.
  absl::StatusOr<MatmulChoice> Best(int32_t rows, const std::vector<MatmulChoice>& candidates,
                                    TimePoint deadline) const;

 private:
  const MatmulLibrary& library_;
  const MatmulShape shape_;
  const kernels::CudaStream stream_;
  const void* w_ = nullptr;
  std::shared_ptr<void> own_w_, x_, y_, bias_, flush_;
};

}  // namespace baton::cuda

#endif  // BATON_DEVICE_CUDA_MATMUL_MATMUL_TIMER_H_
