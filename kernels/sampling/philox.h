// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers:
// As Easy as 1, 2, 3, 2011) and the Gumbel noise made from it. Integer operations, fma and exact
// scaling only, so that a GPU gives the same bits.
#ifndef BATON_KERNELS_SAMPLING_PHILOX_H_
#define BATON_KERNELS_SAMPLING_PHILOX_H_

#include <cstdint>

#include "kernels/launch/host_device.h"
#include "kernels/vector_math/vector_math.h"

namespace baton::kernels {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

struct PhiloxBlock {
  uint32_t word[4];
};

BATON_HOST_DEVICE inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter.word[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return counter;
}

// What a draw is keyed by. The noise of token t is word t % 4 of the block with counter
// (t / 4, position, sample_index, 0) under the key (seed's low half, high half).
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t position = 0;
};

// 23 random bits to (0, 1), centred in their interval: exact in float32, never 0 or 1.
BATON_HOST_DEVICE inline float UniformFromBits(uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 1.1920928955078125e-7f;
}
// Standard Gumbel variate, in (-2.82, 16.64).
BATON_HOST_DEVICE inline float GumbelFromBits(uint32_t bits) {
  return 0.0f - LogF32(0.0f - LogF32(UniformFromBits(bits)));
}
inline constexpr float kGumbelMax = 16.7f;

BATON_HOST_DEVICE inline float GumbelNoise(const NoiseKey& key, uint32_t token) {
  const PhiloxBlock block =
      Philox4x32({{token / 4, key.position, key.sample_index, 0}}, static_cast<uint32_t>(key.seed),
                 static_cast<uint32_t>(key.seed >> 32));
  return GumbelFromBits(block.word[token % 4]);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_PHILOX_H_
