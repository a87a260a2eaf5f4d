#include "kernels/norm/norm.h"
#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

// Adds `delta` to `x` (unless null) and returns the sum of squares. Four chains of eight lanes hide
// the latency of the fused multiply-add; vector i belongs to chain i modulo 4, a tail shorter than
// a vector to the first chain.
HWY_INLINE float AddAndSumSquares(const float* delta, float* x, size_t cols) {
  const F32 d;
  VecF32 sum0 = hn::Zero(d);
  VecF32 sum1 = hn::Zero(d);
  VecF32 sum2 = hn::Zero(d);
  VecF32 sum3 = hn::Zero(d);
  const auto take = [&](size_t c) HWY_ATTR {
    VecF32 v = hn::LoadU(d, x + c);
    if (delta != nullptr) {
      v = hn::Add(v, hn::LoadU(d, delta + c));
      hn::StoreU(v, d, x + c);
    }
    return v;
  };
  size_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    const VecF32 v0 = take(c);
    const VecF32 v1 = take(c + kLanes);
    const VecF32 v2 = take(c + 2 * kLanes);
    const VecF32 v3 = take(c + 3 * kLanes);
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
    sum2 = hn::MulAdd(v2, v2, sum2);
    sum3 = hn::MulAdd(v3, v3, sum3);
  }
  for (; c + kLanes <= cols; c += kLanes) {
    const VecF32 v = take(c);
    sum0 = hn::MulAdd(v, v, sum0);
  }
  if (c < cols) {
    VecF32 v = LoadFirst(d, x + c, cols - c);
    if (delta != nullptr) {
      v = hn::Add(v, LoadFirst(d, delta + c, cols - c));
      StoreFirst(d, v, x + c, cols - c);
    }
    sum0 = hn::MulAdd(v, v, sum0);
  }
  return SumOfLanes(d, hn::Add(hn::Add(sum0, sum2), hn::Add(sum1, sum3)));
}

}  // namespace

void AddNormCpu(const AddNormParams& p, int64_t row_begin, int64_t row_end) {
  const F32 d;
  const auto cols = static_cast<size_t>(p.cols);
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* x = p.residual + row * p.cols;
    float* out = p.out + row * p.cols;
    const float* delta = p.delta == nullptr ? nullptr : p.delta + row * p.cols;
    const float mean = AddAndSumSquares(delta, x, cols) / static_cast<float>(p.cols);
    // Square root and division are correctly rounded; an approximate rsqrt would not be portable.
    const VecF32 inverse = hn::Div(hn::Set(d, 1.0f), hn::Sqrt(hn::Set(d, mean + p.epsilon)));
    size_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      const VecF32 scaled = hn::Mul(hn::LoadU(d, x + c), inverse);
      hn::StoreU(hn::Mul(scaled, hn::LoadU(d, p.gamma + c)), d, out + c);
    }
    if (c < cols) {
      const VecF32 scaled = hn::Mul(LoadFirst(d, x + c, cols - c), inverse);
      StoreFirst(d, hn::Mul(scaled, LoadFirst(d, p.gamma + c, cols - c)), out + c, cols - c);
    }
  }
}

}  // namespace baton::kernels
