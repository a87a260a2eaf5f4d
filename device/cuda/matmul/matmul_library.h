// cuBLASLt as products need it: y[rows, n] = x[rows, k] w[n, k]^T (+ bias[n]). The only file of the
// device that knows cublasLt.h is this one's source.
//
// Thread-compatible: owned by the device's thread.
#ifndef BATON_DEVICE_CUDA_MATMUL_MATMUL_LIBRARY_H_
#define BATON_DEVICE_CUDA_MATMUL_MATMUL_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cuda/matmul/matmul_plan_cache.h"
#include "kernels/launch/launch.h"

struct cublasLtContext;

namespace baton::cuda {

// Of x, w, y and bias.
inline constexpr uint32_t kMatmulAlignmentBytes = 16;

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

struct MatmulLibraryOptions {
  // Device memory that the library may use during Run; aligned to 256 bytes, one stream at a time.
  void* workspace = nullptr;
  size_t workspace_bytes = size_t{64} << 20;
  // Refuses algorithms that split k and add the parts in the order in which they arrive.
  bool deterministic = false;
};

class MatmulLibrary {
  struct Private {};

 public:
  // ERRORS: Unavailable: the library cannot be initialised; Internal: the device.
  static absl::StatusOr<std::unique_ptr<MatmulLibrary>> Create(const MatmulLibraryOptions& options);
  MatmulLibrary(Private, const MatmulLibraryOptions& options) : options_(options) {}
  ~MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;

  int32_t num_sms() const { return num_sms_; }
  int64_t version() const { return version_; }  // cublasLtGetVersion()

  // What the library's heuristic proposes, best first, at most `count`. Takes some 100 us. ERRORS:
  // InvalidArgument: k; Unimplemented: nothing.
  absl::StatusOr<std::vector<MatmulChoice>> Propose(const MatmulShape& shape, int32_t rows,
                                                    int32_t count) const;
  // Adds algorithms that the heuristic leaves out and the library takes. REQUIRES: not empty.
  void AddReshaped(const MatmulShape& shape, int32_t rows,
                   std::vector<MatmulChoice>* choices) const;
  // True when the library takes an algorithm that it has not proposed; sets its workspace.
  bool Accepts(const MatmulShape& shape, int32_t rows, MatmulChoice* choice) const;
  // Enqueues the product; allocates nothing. ERRORS: Internal: refused.
  absl::Status Run(const MatmulParams& params, const MatmulChoice& choice,
                   kernels::CudaStream stream) const;

 private:
  const MatmulLibraryOptions options_;
  cublasLtContext* handle_ = nullptr;
  int32_t num_sms_ = 0;
  int64_t version_ = 0;
};

}  // namespace baton::cuda

#endif  // BATON_DEVICE_CUDA_MATMUL_MATMUL_LIBRARY_H_
