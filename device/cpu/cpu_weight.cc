#include "device/cpu/cpu_weight.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/vector_math/vector_math.h"

namespace baton {
namespace {

// Far beyond any model, and products of two of them and an element size stay in 64 bits.
constexpr int64_t kDimensionMax = int64_t{1} << 28;

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

absl::Status CheckSegments(absl::Span<const WeightSegment> segments, WeightRole role) {
  const auto wrong = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("weight segments: ", parts...));
  };
  if (segments.empty()) return wrong("none");
  if (IsGated(role) && (segments.size() != 2 || segments[0].rows != segments[1].rows)) {
    return wrong("a gated weight takes exactly two of equal shape");
  }
  for (const WeightSegment& s : segments) {
    if (!IsWeightDType(s.dtype)) return wrong("type ", DTypeName(s.dtype));
    if (s.rows < 1 || s.cols < 1 || s.rows > kDimensionMax || s.cols > kDimensionMax) {
      return wrong("shape [", s.rows, ", ", s.cols, "]");
    }
    if (s.cols != segments[0].cols || (!IsMatrix(role) && s.cols != 1)) {
      return wrong(s.cols, " columns");
    }
    const int64_t bytes = s.rows * s.cols * DTypeBytes(s.dtype);
    if (static_cast<int64_t>(s.data.size()) != bytes) {
      return wrong(s.data.size(), " bytes for a shape of ", bytes);
    }
  }
  return absl::OkStatus();
}

// To host memory of the kernels' alignment: files store tensors at any address.
template <typename T>
T Load(absl::Span<const std::byte> data, int64_t index) {
  T value;
  std::memcpy(&value, data.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

float LoadFloat(const WeightSegment& s, int64_t index) {
  if (s.dtype == DType::kF32) return Load<float>(s.data, index);
  const auto bits = Load<uint16_t>(s.data, index);
  return s.dtype == DType::kF16 ? kernels::HalfToF32(bits) : kernels::Bf16ToF32(bits);
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
      std::memcpy(row.data(), s.data.data() + static_cast<size_t>(r) * row_bytes, row_bytes);
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
      out[at] = LoadFloat(s, r);
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
  RETURN_IF_ERROR(CheckSegments(segments, role));
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
