// Products of many rows through cuBLASLt: y[rows, n] = x[rows, k] w[n, k]^T (+ bias[n]).
//
// Row counts are rounded up to buckets. Which algorithm serves a bucket is decided off the step
// path, by Prepare: the library proposes candidates (matmul_library.h), some more that have proved
// good are added, all are timed (matmul_timer.h), and the best is kept in memory and in a file
// (matmul_plan_cache.h). Run then asks nothing, allocates nothing and may be captured; launch
// parameters depend on the actual number of rows.
//
// Thread-compatible: owned by the device's thread.
#ifndef BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_
#define BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "device/cuda/matmul/matmul_library.h"
#include "device/cuda/matmul/matmul_plan_cache.h"
#include "kernels/launch/launch.h"

namespace baton::cuda {

struct MatmulPlansOptions {
  // Row counts that get an algorithm of their own, ascending. Larger ones share the last.
  // Fewer go to the skinny kernel.
  std::vector<int32_t> buckets = {128, 256, 512, 1024, 2048, 4096, 8192};
  MatmulLibraryOptions library = {};
  std::string cache_path = {};  // Empty: memory only.
  int32_t candidates_max = 16;
};

class MatmulPlans {
 public:
  // Reads the cache file; one that cannot be read is ignored with a log line.
  // ERRORS: Unavailable: the library cannot be initialised.
  static absl::StatusOr<std::unique_ptr<MatmulPlans>> Create(const MatmulPlansOptions& options);
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Gives the buckets that hold up to `rows_max` rows (all of them up to that size) an algorithm:
  // the cached one, or the best measured within `budget` (waits for the device and allocates), or,
  // when that or memory is used up, the library's first proposal. `w` is the weights to time with;
  // null: a buffer of random values is made. Call WriteCache afterwards.
  // ERRORS: InvalidArgument: k; Unimplemented: the library has no algorithm; Internal: the device.
  absl::Status Prepare(const MatmulShape& shape, int32_t rows_max, const void* w, Duration budget,
                       kernels::CudaStream stream);

  // Enqueues the product. A shape that was not prepared gets the library's first proposal, which
  // takes some 100 us of the host once.
  // ERRORS: InvalidArgument: a pointer or stride; Unimplemented: as Prepare; Internal: the launch.
  absl::Status Run(const MatmulParams& params, kernels::CudaStream stream);

  // Writes the file if something was measured since it was read. Failures are logged only.
  void WriteCache();

  int32_t BucketOf(int32_t rows) const;
  const MatmulPlanCache& cache() const { return cache_; }

 private:
  MatmulPlans(const MatmulPlansOptions& options, std::unique_ptr<MatmulLibrary> library)
      : options_(options), library_(std::move(library)) {}
  MatmulKey KeyOf(const MatmulShape& shape, int32_t bucket) const;
  absl::Status Tune(const MatmulShape& shape, const std::vector<int32_t>& buckets, const void* w,
                    TimePoint deadline, kernels::CudaStream stream);

  const MatmulPlansOptions options_;
  const std::unique_ptr<MatmulLibrary> library_;
  MatmulPlanCache cache_;
  bool cache_changed_ = false;
};

}  // namespace baton::cuda

#endif  // BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_
