#include "kernels/kv_copy/kv_copy.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "kernels/kv_copy/kv_checksum_mix.h"

namespace baton::kernels {
namespace {

// Bytes copied before they are summed: they are still in the first-level cache then. A multiple
// of 8.
constexpr size_t kWindowBytes = 8192;

// Sum over the words of `bytes`, the first of which has index `first_word`.
uint64_t SumWords(const std::byte* bytes, size_t size, uint64_t first_word) {
  uint64_t sum = 0;
  const size_t num_words = size / 8;
  for (size_t i = 0; i < num_words; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + i * 8, 8);
    sum += KvChecksumMix(word, first_word + i);
  }
  if (const size_t tail = size % 8; tail != 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + num_words * 8, tail);
    sum += KvChecksumMix(word, first_word + num_words);
  }
  return sum;
}

size_t TotalBytes(absl::Span<const absl::Span<const std::byte>> ranges) {
  size_t total = 0;
  for (const auto& range : ranges) total += range.size();
  return total;
}

}  // namespace

uint64_t KvChecksum(absl::Span<const std::byte> bytes) {
  return SumWords(bytes.data(), bytes.size(), 0) +
         KvChecksumMix(bytes.size(), kKvChecksumLengthIndex);
}

uint64_t GatherBytes(absl::Span<const absl::Span<const std::byte>> sources,
                     absl::Span<std::byte> staging) {
  const size_t total = TotalBytes(sources);
  CHECK_LE(total, staging.size());
  uint64_t sum = KvChecksumMix(total, kKvChecksumLengthIndex);
  size_t range = 0;
  size_t range_offset = 0;
  for (size_t window = 0; window < total; window += kWindowBytes) {
    const size_t window_bytes = std::min(kWindowBytes, total - window);
    for (size_t filled = 0; filled < window_bytes;) {
      const absl::Span<const std::byte> source = sources[range];
      const size_t piece = std::min(window_bytes - filled, source.size() - range_offset);
      if (piece > 0) {
        std::memcpy(staging.data() + window + filled, source.data() + range_offset, piece);
      }
      filled += piece;
      range_offset += piece;
      if (range_offset == source.size()) {
        ++range;
        range_offset = 0;
      }
    }
    sum += SumWords(staging.data() + window, window_bytes, window / 8);
  }
  return sum;
}

uint64_t ScatterBytes(absl::Span<const std::byte> staging,
                      absl::Span<const absl::Span<std::byte>> destinations) {
  size_t total = 0;
  for (const auto& range : destinations) total += range.size();
  CHECK_EQ(total, staging.size());
  uint64_t sum = KvChecksumMix(total, kKvChecksumLengthIndex);
  size_t range = 0;
  size_t range_offset = 0;
  for (size_t window = 0; window < total; window += kWindowBytes) {
    const size_t window_bytes = std::min(kWindowBytes, total - window);
    sum += SumWords(staging.data() + window, window_bytes, window / 8);
    for (size_t taken = 0; taken < window_bytes;) {
      const absl::Span<std::byte> destination = destinations[range];
      const size_t piece = std::min(window_bytes - taken, destination.size() - range_offset);
      if (piece > 0) {
        std::memcpy(destination.data() + range_offset, staging.data() + window + taken, piece);
      }
      taken += piece;
      range_offset += piece;
      if (range_offset == destination.size()) {
        ++range;
        range_offset = 0;
      }
    }
  }
  return sum;
}

}  // namespace baton::kernels
