#include "device/weight_segments.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/random_fill/random_fill_cuda.h"
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

float LoadFloat(const std::byte* data, DType dtype) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, data, sizeof(bits));
  return dtype == DType::kF16 ? kernels::HalfToF32(bits) : kernels::Bf16ToF32(bits);
}

uint16_t BF16FromFloat(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void StoreFloat(float x, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, &x, sizeof(x));
  } else if (dtype == DType::kBF16) {
    const uint16_t bits = BF16FromFloat(x);
    std::memcpy(out, &bits, sizeof(bits));
  } else {
    const auto half = static_cast<_Float16>(x);
    std::memcpy(out, &half, sizeof(half));
  }
}

void MakeRandomRow(const WeightSegment& segment, int64_t row, DType to, std::byte* out) {
  const int64_t to_bytes = DTypeBytes(to);
  for (int64_t i = 0; i < segment.cols; ++i) {
    const auto index = static_cast<uint64_t>(row * segment.cols + i);
    const kernels::RandomFillBlock values =
        kernels::RandomFillValues(index / 4, segment.random->seed, segment.random->deviation);
    StoreFloat(values.value[index % 4], to, out + i * to_bytes);
  }
}

}  // namespace

absl::Status CheckWeightSegments(absl::Span<const WeightSegment> segments, WeightRole role) {
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
    if (s.random.has_value() != segments[0].random.has_value()) return wrong("some are random");
    const int64_t bytes = s.random ? 0 : s.rows * s.cols * DTypeBytes(s.dtype);
    if (static_cast<int64_t>(s.data.size()) != bytes) {
      return wrong(s.data.size(), " bytes for a shape of ", bytes);
    }
  }
  return absl::OkStatus();
}

void ConvertWeightRow(const WeightSegment& segment, int64_t row, DType to, std::byte* out) {
  if (segment.random) return MakeRandomRow(segment, row, to, out);
  const int64_t from_bytes = DTypeBytes(segment.dtype);
  const std::byte* from = segment.data.data() + row * segment.cols * from_bytes;
  if (to == segment.dtype) {
    std::memcpy(out, from, static_cast<size_t>(segment.cols * from_bytes));
    return;
  }
  const int64_t to_bytes = DTypeBytes(to);
  for (int64_t i = 0; i < segment.cols; ++i) {
    StoreFloat(LoadFloat(from + i * from_bytes, segment.dtype), to, out + i * to_bytes);
  }
}

}  // namespace baton
