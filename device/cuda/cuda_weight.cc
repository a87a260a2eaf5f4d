#include "device/cuda/cuda_weight.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/weight_segments.h"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton {
namespace {

// Where a padded row of the device's matrix comes from: a row of a segment, or padding.
class RowSource {
 public:
  RowSource(absl::Span<const WeightSegment> segments, bool gated)
      : segments_(segments), gated_(gated) {}

  // Null segment: a row of zeros.
  std::pair<const WeightSegment*, int64_t> Find(int64_t padded_row) const {
    if (gated_) {
      const int64_t group = padded_row / (2 * kCudaPadding);
      const int64_t within = padded_row % (2 * kCudaPadding);
      const auto part = static_cast<size_t>(within / kCudaPadding);
      const int64_t row = group * kCudaPadding + within % kCudaPadding;
      if (row >= segments_[part].rows) return {nullptr, 0};
      return {&segments_[part], row};
    }
    int64_t row = padded_row;
    for (const WeightSegment& segment : segments_) {
      if (row < segment.rows) return {&segment, row};
      row -= segment.rows;
    }
    return {nullptr, 0};
  }

 private:
  const absl::Span<const WeightSegment> segments_;
  const bool gated_;
};

// One row, converted to `to` (F32, F16 or BF16) and padded with zeros.
void FillRow(const WeightSegment* segment, int64_t row, DType to, int64_t row_bytes,
             std::byte* out) {
  if (segment == nullptr) {
    std::memset(out, 0, static_cast<size_t>(row_bytes));
    return;
  }
  const int64_t filled = segment->cols * DTypeBytes(to);
  ConvertWeightRow(*segment, row, to, out);
  std::memset(out + filled, 0, static_cast<size_t>(row_bytes - filled));
}

// Random values are made where they are needed: all of a matrix from its first segment's seed.
absl::Status FillRandom(absl::Span<const WeightSegment> segments, WeightRole role, DType compute,
                        int64_t padded_rows, std::byte* device, WeightUploader& uploader) {
  const bool is_matrix = role == WeightRole::kMatrix || role == WeightRole::kGatedMatrix;
  if (!is_matrix || segments[0].cols % kCudaPadding != 0 || segments[0].rows % kCudaPadding != 0) {
    return absl::InvalidArgumentError(
        "random weights: matrices with multiples of 8 rows and columns only");
  }
  return uploader.Run([&](cudaStream_t stream) {
    const kernels::KernelStatus status = kernels::RandomFillCuda(
        {.out = device,
         .count = padded_rows * segments[0].cols,
         .scale = segments[0].random->deviation,
         .seed = segments[0].random->seed,
         .type = compute == DType::kF16 ? kernels::HalfType::kF16 : kernels::HalfType::kBF16},
        stream);
    return status == kernels::KernelStatus::kOk
               ? absl::OkStatus()
               : absl::InternalError(
                     absl::StrCat("random weights: ", kernels::KernelStatusName(status)));
  });
}

}  // namespace

absl::StatusOr<WeightPtr> PrepareCudaWeight(absl::Span<const WeightSegment> segments,
                                            WeightRole role, DType compute, CudaMemory& memory,
                                            WeightUploader& uploader) {
  RETURN_IF_ERROR(CheckWeightSegments(segments, role));
  if (compute != DType::kBF16 && compute != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("the CUDA device computes in BF16 or F16, not ", DTypeName(compute)));
  }
  const bool gated = role == WeightRole::kGatedMatrix || role == WeightRole::kGatedBias;
  int64_t rows = 0;
  for (const WeightSegment& s : segments) rows += s.rows;
  if (gated) rows = segments[0].rows;
  const int64_t cols = segments[0].cols;
  const bool is_matrix = role == WeightRole::kMatrix || role == WeightRole::kGatedMatrix;
  const DType dtype = role == WeightRole::kVector ? DType::kF32 : compute;
  const int64_t row_bytes = (is_matrix ? PadForCuda(cols) : 1) * DTypeBytes(dtype);
  const int64_t padded_rows = PadForCuda(rows) * (gated ? 2 : 1);
  const int64_t bytes = padded_rows * row_bytes;
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> device, memory.Allocate(bytes, "weights"));
  if (segments[0].random) {
    RETURN_IF_ERROR(FillRandom(segments, role, compute, padded_rows, device.get(), uploader));
    return std::make_shared<CudaWeight>(role, dtype, rows, cols, bytes, std::move(device));
  }
  const RowSource source(segments, gated);
  RETURN_IF_ERROR(uploader.Upload(device.get(), padded_rows, row_bytes,
                                  [&](int64_t begin, int64_t end, std::byte* out) {
                                    for (int64_t row = begin; row < end; ++row, out += row_bytes) {
                                      const auto [segment, at] = source.Find(row);
                                      FillRow(segment, at, dtype, row_bytes, out);
                                    }
                                  }));
  return std::make_shared<CudaWeight>(role, dtype, rows, cols, bytes, std::move(device));
}

}  // namespace baton
