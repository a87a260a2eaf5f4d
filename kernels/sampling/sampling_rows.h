// The passes over a whole row of logits that SampleRowCpu is made of, in vector code. Private to
// the family.
#ifndef BATON_KERNELS_SAMPLING_SAMPLING_ROWS_H_
#define BATON_KERNELS_SAMPLING_SAMPLING_ROWS_H_

#include <cstdint>

#include "kernels/sampling/philox.h"

namespace baton::kernels {

struct RowMaximum {
  float value = 0;
  int32_t token = 0;   // The first that has it.
  bool finite = true;  // All logits are; otherwise value and token mean nothing.
};
RowMaximum FindRowMaximum(const float* logits, int32_t vocab);

// z[i] = (logits[i] - maximum) * inverse_temperature for i < vocab, -infinity for the rest of
// z [padded], padded a multiple of 32.
void ScaleRow(const float* logits, int32_t vocab, float maximum, float inverse_temperature,
              int32_t padded, float* z);

// Sum of exp(logits[i] - maximum), in double, in a fixed order.
double SumOfExponentials(const float* logits, int32_t vocab, float maximum);

// The token with the largest z + noise. REQUIRES: z [padded] as from ScaleRow, some z is finite.
int32_t GumbelArgmax(const float* z, int32_t padded, const NoiseKey& key);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_ROWS_H_
