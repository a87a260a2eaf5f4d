// Arithmetic on sizes that come from files: every result is exact or absent, never wrapped.
//
// A wrapped product or sum is how hostile model files get past size checks (a shape whose bytes
// wrap to 0, an offset whose end wraps below its begin), so readers of files use nothing else.
#ifndef BATON_ENGINE_WEIGHTS_CHECKED_MATH_H_
#define BATON_ENGINE_WEIGHTS_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace baton {

// a + b, or nothing when it does not fit 64 bits.
constexpr std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// a * b, or nothing when it does not fit 64 bits.
constexpr std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// The least multiple of `alignment` that is >= value. Nothing when it does not fit 64 bits, or when
// alignment is not a power of two (0 is none).
constexpr std::optional<uint64_t> CheckedAlignUp(uint64_t value, uint64_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) return std::nullopt;
  const std::optional<uint64_t> sum = CheckedAdd(value, alignment - 1);
  if (!sum.has_value()) return std::nullopt;
  return *sum & ~(alignment - 1);
}

// Number of elements of `shape` (1 for no dimensions). Nothing when a dimension is negative or when
// the product of the dimensions other than 0 does not fit: [2^33, 2^33, 0] is refused although it
// is empty, because any other order of multiplication would have wrapped.
inline std::optional<uint64_t> CheckedElements(absl::Span<const int64_t> shape) {
  uint64_t product = 1;
  bool is_empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      is_empty = true;
      continue;
    }
    const std::optional<uint64_t> next = CheckedMultiply(product, static_cast<uint64_t>(dimension));
    if (!next.has_value()) return std::nullopt;
    product = *next;
  }
  return is_empty ? 0 : product;
}

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_CHECKED_MATH_H_
