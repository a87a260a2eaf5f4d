// Copies scattered byte ranges of KV blocks into a contiguous staging slot and back, with a
// checksum of the contiguous bytes computed on the way.
//
// Checksum of n bytes = sum modulo 2^64 of KvChecksumMix(word i, i) over the ceil(n / 8) words of 8
// bytes, read as little-endian with the last one padded by zeros, plus
// KvChecksumMix(n, kKvChecksumLengthIndex). The sum commutes, so any number of threads may compute
// it in any order. It detects faults (a lost, doubled, exchanged or torn piece); it is no defence
// against an adversary.
//
// Thread rule: pure functions, safe anywhere. Nobody may write the source or touch the destination
// meanwhile. Source and destination must not overlap. Bound: memory bandwidth (bytes read +
// written).
#ifndef BATON_KERNELS_KV_COPY_KV_COPY_H_
#define BATON_KERNELS_KV_COPY_KV_COPY_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace baton::kernels {

// Of contiguous bytes, any alignment, any length (0 too).
uint64_t KvChecksum(absl::Span<const std::byte> bytes);

// Concatenates `sources`, in order, at the start of `staging`. Returns the checksum of what was
// written. REQUIRES: the sizes of the sources add up to at most staging.size().
uint64_t GatherBytes(absl::Span<const absl::Span<const std::byte>> sources,
                     absl::Span<std::byte> staging);

// Cuts `staging` into `destinations`, in order. Returns the checksum of what was read: the caller
// compares it with the sender's. REQUIRES: the sizes of the destinations add up to staging.size().
uint64_t ScatterBytes(absl::Span<const std::byte> staging,
                      absl::Span<const absl::Span<std::byte>> destinations);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_COPY_KV_COPY_H_
