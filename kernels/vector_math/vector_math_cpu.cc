#include "kernels/vector_math/vector_math_cpu.h"

#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

template <typename Function>
HWY_INLINE void Apply(const float* x, size_t n, float* y, Function function) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(function(d, hn::LoadU(d, x + i)), d, y + i);
  if (i < n) StoreFirst(d, function(d, LoadFirst(d, x + i, n - i)), y + i, n - i);
}

}  // namespace

void ExpArray(const float* x, size_t n, float* y) {
  Apply(x, n, y, [](F32 d, VecF32 v) { return ExpF32(d, v); });
}
void LogArray(const float* x, size_t n, float* y) {
  Apply(x, n, y, [](F32 d, VecF32 v) { return LogF32(d, v); });
}
void SiluArray(const float* x, size_t n, float* y) {
  Apply(x, n, y, [](F32 d, VecF32 v) { return SiluF32(d, v); });
}

}  // namespace baton::kernels
