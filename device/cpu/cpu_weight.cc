#include "device/cpu/cpu_weight.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "device/weight_segments.h"

namespace baton {
namespace {

bool IsMatrix(WeightRole role) {
  return role == WeightRole::kMatrix || role == WeightRole::kGatedMatrix;
}
bool IsGated(WeightRole role) {
  return role == WeightRole::kGatedMatrix || role == WeightRole::kGatedBias;
}

kernels::WeightType ToWeightType(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kernels::WeightType::kF16;
    case DType::kBF16:
      return kernels::WeightType::kBF16;
    default:
      return kernels::WeightType::kF32;
  }
}

void PackMatrix(absl::Span<const WeightSegment> segments, bool gated, kernels::WeightType type,
                std::byte* packed) {
  int64_t first_row = 0;
  int part = 0;
  for (const WeightSegment& s : segments) {
    // One row at a time through an aligned copy.
    const auto row_bytes = static_cast<size_t>(s.cols * DTypeBytes(s.dtype));
    std::vector<uint64_t> row((row_bytes + 7) / 8);
    for (int64_t r = 0; r < s.rows; ++r) {
      ConvertWeightRow(s, r, s.dtype, reinterpret_cast<std::byte*>(row.data()));
      kernels::PackLinearRows(row.data(), ToWeightType(s.dtype), 1, s.cols, first_row + r, gated,
                              part, type, packed);
    }
    if (gated) {
      ++part;
    } else {
      first_row += s.rows;
    }
  }
}

void PackVector(absl::Span<const WeightSegment> segments, bool gated, float* out) {
  int64_t first_row = 0;
  int part = 0;
  for (const WeightSegment& s : segments) {
    for (int64_t r = 0; r < s.rows; ++r) {
      const int64_t row = first_row + r;
      const int64_t at =
          kernels::PanelOfRow(row, gated, part) * kernels::kPanelRows + row % kernels::kPanelRows;
      ConvertWeightRow(s, r, DType::kF32, reinterpret_cast<std::byte*>(out + at));
    }
    if (gated) {
      ++part;
    } else {
      first_row += s.rows;
    }
  }
}

}  // namespace

kernels::WeightType CpuWeight::type() const { return ToWeightType(dtype()); }

absl::StatusOr<WeightPtr> PrepareCpuWeight(absl::Span<const WeightSegment> segments,
                                           WeightRole role, CpuMemory& memory) {
  RETURN_IF_ERROR(CheckWeightSegments(segments, role));
  const bool gated = IsGated(role);
  int64_t rows = 0;
  for (const WeightSegment& s : segments) rows += s.rows;
  if (gated) rows = segments[0].rows;
  const int64_t cols = segments[0].cols;
  const bool uniform = std::all_of(segments.begin(), segments.end(), [&](const WeightSegment& s) {
    return s.dtype == segments[0].dtype;
  });
  const DType dtype = IsMatrix(role) && uniform ? segments[0].dtype : DType::kF32;
  // Vectors are padded like biases (a panel of one column); nothing reads the padding of a kVector.
  const auto bytes =
      static_cast<int64_t>(kernels::PackedWeightBytes(rows, cols, gated, ToWeightType(dtype)));
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> packed, memory.Allocate(bytes, "weights"));
  if (IsMatrix(role)) {
    PackMatrix(segments, gated, ToWeightType(dtype), packed.get());
  } else {
    PackVector(segments, gated, reinterpret_cast<float*>(packed.get()));
  }
  return std::make_shared<CpuWeight>(role, dtype, rows, cols, bytes, std::move(packed));
}

}  // namespace baton
