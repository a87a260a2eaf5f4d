// Sampling of sampling.h on the GPU. The token of a row is the one that SampleRowRef gives for the
// same logits and parameters: noise, weights and comparisons have the same bits, and sums are
// integers. Log-probabilities agree up to rounding (their sum is added up in another, fixed order).
//
// Parameters are data of the step, in device memory, so one captured launch serves any mix of them.
#ifndef BATON_KERNELS_SAMPLING_SAMPLING_CUDA_H_
#define BATON_KERNELS_SAMPLING_SAMPLING_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/sampling/sampling.h"

namespace baton::kernels {

inline constexpr int32_t kSampleCudaVocabMax = 262144;

struct SampleCudaParams {
  const float* logits = nullptr;         // [rows, stride], the first `vocab` of each row count
  const SampleParams* params = nullptr;  // [rows]
  SampleResult* results = nullptr;       // [rows]; every byte is written
  int32_t* last_samples = nullptr;       // [rows], the tokens again, for EmbedCuda; may be null
  int64_t rows = 0;
  int64_t stride = 0;
  int32_t vocab = 0;  // [1, kSampleCudaVocabMax]
};
// A row that is not finite gets token 0.
KernelStatus SampleCuda(const SampleCudaParams& p, CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_CUDA_H_
