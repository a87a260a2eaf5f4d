// The mixing function of the KV checksum, alone in a header, so that device code can include it and
// compute the same sum in parallel.
#ifndef BATON_KERNELS_KV_COPY_KV_CHECKSUM_MIX_H_
#define BATON_KERNELS_KV_COPY_KV_CHECKSUM_MIX_H_

#include <cstdint>

#include "kernels/launch/host_device.h"

namespace baton::kernels {

// Word index under which the length of the message enters the sum.
inline constexpr uint64_t kKvChecksumLengthIndex = ~uint64_t{0};

// A bijection of `word` for every fixed `index` (so that a change confined to one word is always
// seen), which depends on the index (so that exchanged words are seen). The finaliser is the one of
// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
BATON_HOST_DEVICE inline uint64_t KvChecksumMix(uint64_t word, uint64_t index) {
  uint64_t x = word + (index + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_COPY_KV_CHECKSUM_MIX_H_
