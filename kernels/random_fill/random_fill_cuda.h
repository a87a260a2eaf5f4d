// Fills 16-bit matrices with reproducible values that look like weights, for benchmarks of models
// nobody has the weights of.
//
// Element i = (b0 + b1 + b2 + b3 - 510) * (scale / kRandomFillDeviation), rounded to `type`, where
// b are the bytes of word i % 4 of the Philox block with counter (i / 4, low half first, 0, 0)
// under the key `seed`: a bell of standard deviation `scale` that ends at 3.45 of it.
#ifndef BATON_KERNELS_RANDOM_FILL_RANDOM_FILL_CUDA_H_
#define BATON_KERNELS_RANDOM_FILL_RANDOM_FILL_CUDA_H_

#include <cstdint>

#include "kernels/launch/host_device.h"
#include "kernels/launch/launch.h"
#include "kernels/sampling/philox.h"

namespace baton::kernels {

// Standard deviation of the sum of four uniform bytes: sqrt(4 * (256^2 - 1) / 12).
inline constexpr float kRandomFillDeviation = 147.8f;

// The four values, before rounding, of elements 4 * block to 4 * block + 3.
struct RandomFillBlock {
  float value[4];
};
BATON_HOST_DEVICE inline RandomFillBlock RandomFillValues(uint64_t block, uint64_t seed,
                                                          float scale) {
  const PhiloxBlock random =
      Philox4x32({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}},
                 static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  RandomFillBlock out;
  for (int i = 0; i < 4; ++i) {
    const uint32_t w = random.word[i];
    const uint32_t sum = (w & 255u) + ((w >> 8) & 255u) + ((w >> 16) & 255u) + (w >> 24);
    out.value[i] =
        static_cast<float>(static_cast<int32_t>(sum) - 510) * (scale / kRandomFillDeviation);
  }
  return out;
}

struct RandomFillCudaParams {
  void* out = nullptr;  // [count] of `type`
  int64_t count = 0;
  float scale = 1;
  uint64_t seed = 0;
  HalfType type = HalfType::kBF16;
};
KernelStatus RandomFillCuda(const RandomFillCudaParams& p, CudaStream stream);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_RANDOM_FILL_RANDOM_FILL_CUDA_H_
