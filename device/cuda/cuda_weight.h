// Weights on the GPU. Matrices are row-major in the 16-bit type of the model, rows and columns
// padded with zeros to multiples of 8; gated ones alternate 8 rows of gate and 8 of up, so that one
// kernel holds both halves of an output. Biases have the type and order of their matrix's rows.
// Vectors are float32.
#ifndef BATON_DEVICE_CUDA_CUDA_WEIGHT_H_
#define BATON_DEVICE_CUDA_CUDA_WEIGHT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/cuda/weight_uploader.h"
#include "device/device.h"

namespace baton {

// Rows and columns of matrices, and widths of activations, are multiples of this.
inline constexpr int64_t kCudaPadding = 8;
constexpr int64_t PadForCuda(int64_t n) {
  return (n + kCudaPadding - 1) / kCudaPadding * kCudaPadding;
}

class CudaWeight : public Weight {
 public:
  CudaWeight(WeightRole role, DType dtype, int64_t rows, int64_t cols, int64_t bytes,
             std::shared_ptr<std::byte> memory)
      : Weight(role, dtype, rows, cols), bytes_(bytes), memory_(std::move(memory)) {}
  int64_t bytes() const override { return bytes_; }
  const void* data() const { return memory_.get(); }
  int64_t padded_rows() const { return PadForCuda(rows()); }  // Gated: of one part.
  int64_t padded_cols() const { return PadForCuda(cols()); }

 private:
  const int64_t bytes_;
  const std::shared_ptr<std::byte> memory_;
};

// ERRORS: those of Device::Prepare.
absl::StatusOr<WeightPtr> PrepareCudaWeight(absl::Span<const WeightSegment> segments,
                                            WeightRole role, DType compute, CudaMemory& memory,
                                            WeightUploader& uploader);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_WEIGHT_H_
