#include <cmath>

#include "kernels/rope/rope.h"
#include "kernels/vector_math/vector_math.h"

namespace baton::kernels {

void RopeAngles(const RopeAnglesParams& p, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* cosines = p.out + row * 2 * p.half;
    float* sines = cosines + p.half;
    const auto position = static_cast<float>(p.positions[row]);
    for (int64_t i = 0; i < p.half; ++i) {
      const float angle = position * p.inverse_frequencies[i];
      const SinCos sc = SinCosF64(static_cast<double>(angle));
      cosines[i] = sc.cos * p.scale;
      sines[i] = sc.sin * p.scale;
    }
  }
}

namespace {

void Rotate(const float* x, const float* cosines, const float* sines, int64_t half, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    y[i] = std::fma(x[i], cosines[i], -(x[i + half] * sines[i]));
    y[i + half] = std::fma(x[i + half], cosines[i], x[i] * sines[i]);
  }
}

}  // namespace

void RopeKvWriteRef(const RopeKvWriteParams& p, int64_t row_begin, int64_t row_end) {
  const int64_t dim = p.kv.head_dim;
  const int64_t half = dim / 2;
  const int64_t block_tokens = int64_t{1} << p.kv.block_tokens_log2;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* cosines = p.angles + row * dim;
    const float* sines = cosines + half;
    const float* in = p.qkv + row * (p.num_heads + 2 * p.num_kv_heads) * dim;
    for (int64_t h = 0; h < p.num_heads; ++h) {
      Rotate(in + h * dim, cosines, sines, half, p.q + (row * p.num_heads + h) * dim);
    }
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      float* key = p.kv.Key(p.slots[row] / block_tokens, h, p.slots[row] % block_tokens);
      Rotate(in + (p.num_heads + h) * dim, cosines, sines, half, key);
      const float* value = in + (p.num_heads + p.num_kv_heads + h) * dim;
      for (int64_t i = 0; i < dim; ++i) key[p.kv.value_offset + i] = value[i];
    }
  }
}

}  // namespace baton::kernels
