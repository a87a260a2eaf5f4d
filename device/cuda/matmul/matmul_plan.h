// Products of many rows through cuBLASLt: y[rows, n] = x[rows, k] w[n, k]^T (+ bias[n]).
//
// Row counts are rounded up to buckets. Which algorithm serves a bucket is decided off the step
// path, by Prepare: the library proposes candidates, some more that have proved good are added, all
// are timed in turn with a cold L2, and the best is kept in memory and in a file
// (matmul_plan_cache.h). Run then asks nothing, allocates nothing and
// may be captured; launch parameters depend on the actual number of rows.
//
// Thread-compatible: owned by the device's thread.
#ifndef BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_
#define BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "device/cuda/matmul/matmul_plan_cache.h"
#include "kernels/launch/launch.h"

namespace baton::cuda {

struct MatmulShape {
  int32_t n = 0;
  int32_t k = 0;  // A multiple of 8.
  kernels::HalfType type = kernels::HalfType::kBF16;
  bool y_is_f32 = false;
  bool bias = false;  // Of `type`, with y of `type` only.

  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

struct MatmulParams {
  MatmulShape shape;
  int32_t rows = 0;            // 0: does nothing.
  const void* x = nullptr;     // [rows, k], aligned to 16 bytes.
  int64_t x_stride = 0;        // Elements, a multiple of 8.
  const void* w = nullptr;     // [n, k], contiguous, aligned to 16 bytes.
  const void* bias = nullptr;  // [n], when shape.bias.
  void* y = nullptr;           // [rows, n]
  int64_t y_stride = 0;        // Elements.
};

struct MatmulPlansOptions {
  // Row counts that get an algorithm of their own, ascending. Larger ones share the last.
  std::vector<int32_t> buckets = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  // Device memory that the library may use during Run; aligned to 256 bytes, one stream at a time.
  void* workspace = nullptr;
  size_t workspace_bytes = size_t{64} << 20;
  // Refuses algorithms that split k and add the parts in the order in which they arrive.
  bool deterministic = false;
  std::string cache_path = {};  // Empty: memory only.
  int32_t candidates_max = 16;
};

class MatmulPlans {
 public:
  // Reads the cache file; one that cannot be read is ignored with a log line.
  // ERRORS: Unavailable: the library cannot be initialised.
  static absl::StatusOr<std::unique_ptr<MatmulPlans>> Create(const MatmulPlansOptions& options);
  ~MatmulPlans();
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
  struct Library;   // The handle; keeps cublasLt.h out of this header.
  class EventPair;  // Around what is timed.

  MatmulPlans(const MatmulPlansOptions& options, std::unique_ptr<Library> library);
  MatmulKey KeyOf(const MatmulShape& shape, int32_t bucket) const;
  absl::StatusOr<std::vector<MatmulChoice>> Candidates(const MatmulShape& shape, int32_t bucket,
                                                       int32_t count) const;
  // Adds what the heuristic leaves out and the library takes.
  void AddReshaped(const MatmulShape& shape, int32_t bucket,
                   std::vector<MatmulChoice>* choices) const;
  // Microseconds with a cold L2. ERRORS: Internal: the device.
  absl::StatusOr<double> TimeOnce(const MatmulParams& params, const MatmulChoice& choice,
                                  void* flush, const EventPair& events,
                                  kernels::CudaStream stream) const;
  // The best of `candidates`, of near ties with many rows the first. They are timed in turn, round
  // after round: products of many rows draw the full power, the clock falls by a sixth within 100
  // ms, and whoever is timed first looks best.
  absl::StatusOr<MatmulChoice> Measure(const MatmulParams& params,
                                       const std::vector<MatmulChoice>& candidates, void* flush,
                                       TimePoint deadline, kernels::CudaStream stream) const;
  absl::Status Tune(const MatmulShape& shape, const std::vector<int32_t>& buckets, const void* w,
                    TimePoint deadline, kernels::CudaStream stream);
  // True when the library takes an algorithm that it has not proposed; sets its workspace.
  bool Accepts(const MatmulShape& shape, int32_t bucket, MatmulChoice* choice) const;
  absl::Status RunChoice(const MatmulParams& params, const MatmulChoice& choice,
                         kernels::CudaStream stream) const;

  MatmulPlansOptions options_;
  std::unique_ptr<Library> library_;
  MatmulPlanCache cache_;
  bool cache_changed_ = false;
};

}  // namespace baton::cuda

#endif  // BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_H_
