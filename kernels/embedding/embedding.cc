// Plain code: bound by memory latency, and less than a hundredth of a step.
#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/vector_math/vector_math.h"

namespace baton::kernels {

void Embed(const EmbedParams& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* out = p.out + row * p.k;
    const int64_t id = p.ids[row];
    if (id < 0 || id >= p.n) {
      std::fill(out, out + p.k, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const int64_t first = PanelOfRow(id, false, 0) * kPanelRows * p.k + LaneOfRow(id, p.type);
    if (p.type == WeightType::kF32) {
      const float* w = static_cast<const float*>(p.packed) + first;
      for (int64_t i = 0; i < p.k; ++i) out[i] = w[i * kPanelRows];
      continue;
    }
    const uint16_t* w = static_cast<const uint16_t*>(p.packed) + first;
    for (int64_t i = 0; i < p.k; ++i) {
      const uint16_t bits = w[i * kPanelRows];
      out[i] = p.type == WeightType::kF16 ? HalfToF32(bits) : Bf16ToF32(bits);
    }
  }
}

void GatherRows(const float* in, const int32_t* rows, int64_t cols, int64_t begin, int64_t end,
                float* out) {
  for (int64_t i = begin; i < end; ++i) {
    std::memcpy(out + i * cols, in + rows[i] * cols, static_cast<size_t>(cols) * sizeof(float));
  }
}

}  // namespace baton::kernels
