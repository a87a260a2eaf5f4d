// Vector forms of vector_math.h, bit for bit. Included only by *_cpu.cc files, which are compiled
// with -march=x86-64-v3; every such file must be free of inline functions of the standard library,
// lest the linker give them to code that runs on any processor.
#ifndef BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_INL_H_
#define BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_INL_H_

// x86-64-v3 has no AES; Highway would otherwise not recognise the target as AVX2.
#define HWY_DISABLE_PCLMUL_AES 1
#include "hwy/highway.h"
#include "kernels/vector_math/vector_math.h"

static_assert(HWY_STATIC_TARGET == HWY_AVX2, "compile this file with -march=x86-64-v3");

// Internal linkage: no other translation unit may take these copies.
namespace baton::kernels {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Eight lanes everywhere: reductions are written for that width, so that their order is fixed.
using F32 = hn::FixedTag<float, 8>;
using I32 = hn::FixedTag<int32_t, 8>;
using U32 = hn::FixedTag<uint32_t, 8>;
using VecF32 = hn::Vec<F32>;
inline constexpr size_t kLanes = 8;

HWY_INLINE VecF32 ExpF32(F32 d, VecF32 x) {
  const I32 di;
  const VecF32 y = hn::Min(x, hn::Set(d, kExpArgumentMax));
  const VecF32 n = hn::Round(hn::Mul(y, hn::Set(d, kLog2E)));
  VecF32 r = hn::MulAdd(n, hn::Set(d, -kLn2High), y);
  r = hn::MulAdd(n, hn::Set(d, -kLn2Low), r);
  VecF32 p = hn::Set(d, kExpPolynomial.c[0]);
  for (int i = 1; i < 6; ++i) p = hn::MulAdd(p, r, hn::Set(d, kExpPolynomial.c[i]));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const VecF32 e = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  const VecF32 in_range = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kExpArgumentMin)), e);
  return hn::IfThenElse(hn::IsNaN(x), x, in_range);
}

HWY_INLINE VecF32 LogF32(F32 d, VecF32 x) {
  const I32 di;
  const auto bits = hn::BitCast(di, x);
  auto exponent = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(di, 126));
  const auto mantissa_bits =
      hn::Or(hn::And(bits, hn::Set(di, 0x007FFFFF)), hn::Set(di, 0x3F000000));
  VecF32 m = hn::BitCast(d, mantissa_bits);
  const auto small = hn::Lt(m, hn::Set(d, kSqrtHalf));
  exponent = hn::Sub(exponent, hn::IfThenElseZero(hn::RebindMask(di, small), hn::Set(di, 1)));
  m = hn::IfThenElse(small, hn::Add(m, m), m);
  const VecF32 f = hn::Sub(m, hn::Set(d, 1.0f));
  const VecF32 e = hn::ConvertTo(d, exponent);
  const VecF32 z = hn::Mul(f, f);
  VecF32 p = hn::Set(d, kLogPolynomial.c[0]);
  for (int i = 1; i < 9; ++i) p = hn::MulAdd(p, f, hn::Set(d, kLogPolynomial.c[i]));
  VecF32 y = hn::Mul(hn::Mul(f, z), p);
  y = hn::MulAdd(e, hn::Set(d, kLn2Low), y);
  y = hn::MulAdd(z, hn::Set(d, -0.5f), y);
  return hn::MulAdd(e, hn::Set(d, kLn2High), hn::Add(f, y));
}

HWY_INLINE VecF32 SiluF32(F32 d, VecF32 x) {
  const VecF32 denominator = hn::Add(hn::Set(d, 1.0f), ExpF32(d, hn::Sub(hn::Zero(d), x)));
  return hn::Div(x, denominator);
}

// The first `count` (0 to 8) lanes from memory, the rest zero; touches nothing beyond.
HWY_INLINE VecF32 LoadFirst(F32 d, const float* p, size_t count) {
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
}
HWY_INLINE void StoreFirst(F32 d, VecF32 v, float* p, size_t count) {
  hn::BlendedStore(v, hn::FirstN(d, count), d, p);
}

// ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7)): the one order in which eight lanes are added up.
HWY_INLINE float SumOfLanes(F32 d, VecF32 v) {
  HWY_ALIGN float l[kLanes];
  hn::Store(v, d, l);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}
HWY_INLINE float MaxOfLanes(F32 d, VecF32 v) { return hn::GetLane(hn::MaxOfLanes(d, v)); }

}  // namespace
}  // namespace baton::kernels

#endif  // BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_INL_H_
