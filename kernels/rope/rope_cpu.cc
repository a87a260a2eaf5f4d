#include "kernels/rope/rope.h"
#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

HWY_INLINE void Rotate(const float* x, const float* cosines, const float* sines, size_t half,
                       float* y) {
  const F32 d;
  for (size_t i = 0; i < half; i += kLanes) {
    const size_t n = half - i < kLanes ? half - i : kLanes;
    if (n == kLanes) {
      const VecF32 a = hn::LoadU(d, x + i);
      const VecF32 b = hn::LoadU(d, x + half + i);
      const VecF32 c = hn::LoadU(d, cosines + i);
      const VecF32 s = hn::LoadU(d, sines + i);
      hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, y + i);
      hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, y + half + i);
    } else {
      const VecF32 a = LoadFirst(d, x + i, n);
      const VecF32 b = LoadFirst(d, x + half + i, n);
      const VecF32 c = LoadFirst(d, cosines + i, n);
      const VecF32 s = LoadFirst(d, sines + i, n);
      StoreFirst(d, hn::MulSub(a, c, hn::Mul(b, s)), y + i, n);
      StoreFirst(d, hn::MulAdd(b, c, hn::Mul(a, s)), y + half + i, n);
    }
  }
}

HWY_INLINE void Copy(const float* x, size_t n, float* y) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::LoadU(d, x + i), d, y + i);
  if (i < n) StoreFirst(d, LoadFirst(d, x + i, n - i), y + i, n - i);
}

}  // namespace

void RopeKvWriteCpu(const RopeKvWriteParams& p, int64_t row_begin, int64_t row_end) {
  const int64_t dim = p.kv.head_dim;
  const auto half = static_cast<size_t>(dim / 2);
  const int64_t token_mask = (int64_t{1} << p.kv.block_tokens_log2) - 1;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* cosines = p.angles + row * dim;
    const float* sines = cosines + half;
    const float* in = p.qkv + row * (p.num_heads + 2 * p.num_kv_heads) * dim;
    for (int64_t h = 0; h < p.num_heads; ++h) {
      Rotate(in + h * dim, cosines, sines, half, p.q + (row * p.num_heads + h) * dim);
    }
    const int64_t block = p.slots[row] >> p.kv.block_tokens_log2;
    for (int64_t h = 0; h < p.num_kv_heads; ++h) {
      float* key = p.kv.Key(block, h, p.slots[row] & token_mask);
      Rotate(in + (p.num_heads + h) * dim, cosines, sines, half, key);
      Copy(in + (p.num_heads + p.num_kv_heads + h) * dim, static_cast<size_t>(dim),
           key + p.kv.value_offset);
    }
  }
}

}  // namespace baton::kernels
