// Elementary functions whose every rounding is written down: only +, -, *, /, fma, integer
// operations and round-to-nearest-even, in a fixed order. So the scalar forms here, the vector
// forms in vector_math-inl.h and a GPU give the same bits, whatever the library or compiler.
//
// Thread rule: pure functions.
#ifndef BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_H_
#define BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/launch/host_device.h"

namespace baton::kernels {

// Cephes' expf and logf (S. Moshier, netlib.org/cephes/single), Horner steps as fused operations.
inline constexpr float kExpArgumentMax = 88.0f;
inline constexpr float kExpArgumentMin = -87.33654f;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// In structs, because device code may copy a constant of the namespace but not take its address.
struct ExpPolynomial {
  float c[6];
};
struct LogPolynomial {
  float c[9];
};
inline constexpr ExpPolynomial kExpPolynomial = {{1.9875691500e-4f, 1.3981999507e-3f,
                                                  8.3334519073e-3f, 4.1665795894e-2f,
                                                  1.6666665459e-1f, 5.0000001201e-1f}};
inline constexpr LogPolynomial kLogPolynomial = {
    {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
     -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f}};
inline constexpr float kSqrtHalf = 0.707106781f;

// e^x within 2 units in the last place. Below kExpArgumentMin: exactly 0. Above kExpArgumentMax: as
// at kExpArgumentMax (1.65e38, so never infinity). NaN stays NaN.
BATON_HOST_DEVICE inline float ExpF32(float x) {
  if (std::isnan(x)) return x;
  if (x < kExpArgumentMin) return 0.0f;
  const float y = x > kExpArgumentMax ? kExpArgumentMax : x;
  const float n = std::nearbyint(y * kLog2E);
  float r = std::fma(n, -kLn2High, y);
  r = std::fma(n, -kLn2Low, r);
  constexpr ExpPolynomial kE = kExpPolynomial;
  float p = kE.c[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kE.c[i]);
  p = std::fma(p, r * r, r) + 1.0f;
  const auto scale = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(scale);
}

// Natural logarithm within 2 units in the last place (absolutely 1e-7 near 1).
// REQUIRES: x is positive, normal and finite.
BATON_HOST_DEVICE inline float LogF32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // Mantissa in [0.5, 1), then in [sqrt(1/2), sqrt(2)).
  int32_t exponent = static_cast<int32_t>(bits >> 23) - 126;
  float m = std::bit_cast<float>((bits & 0x007FFFFFu) | 0x3F000000u);
  if (m < kSqrtHalf) {
    exponent -= 1;
    m = m + m;
  }
  const float f = m - 1.0f;
  const auto e = static_cast<float>(exponent);
  const float z = f * f;
  constexpr LogPolynomial kL = kLogPolynomial;
  float p = kL.c[0];
  for (int i = 1; i < 9; ++i) p = std::fma(p, f, kL.c[i]);
  float y = f * z * p;
  y = std::fma(e, kLn2Low, y);
  y = std::fma(z, -0.5f, y);
  return std::fma(e, kLn2High, f + y);
}

// x * logistic(x).
BATON_HOST_DEVICE inline float SiluF32(float x) { return x / (1.0f + ExpF32(0.0f - x)); }

struct SinCos {
  float sin = 0;
  float cos = 0;
};

// Of an angle in radians, |angle| < 2^26, correctly rounded in all but rare cases: two-step
// Cody-Waite reduction and the kernel polynomials of fdlibm (Sun Microsystems, 1993), in double.
BATON_HOST_DEVICE inline SinCos SinCosF64(double angle) {
  constexpr double kTwoOverPi = 6.36619772367581382433e-01;
  constexpr double kPiOver2High = 1.57079632673412561417e+00;
  constexpr double kPiOver2Low = 6.07710050650619224932e-11;
  const double n = std::nearbyint(angle * kTwoOverPi);
  double r = std::fma(n, -kPiOver2High, angle);
  r = std::fma(n, -kPiOver2Low, r);
  const double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = std::fma(s, z, -2.50507602534068634195e-08);
  s = std::fma(s, z, 2.75573137070700676789e-06);
  s = std::fma(s, z, -1.98412698298579493134e-04);
  s = std::fma(s, z, 8.33333333332248946124e-03);
  s = std::fma(s, z, -1.66666666666666324348e-01);
  s = std::fma(s * z, r, r);
  double c = -1.13596475577881948265e-11;
  c = std::fma(c, z, 2.08757232129817482790e-09);
  c = std::fma(c, z, -2.75573143513906633035e-07);
  c = std::fma(c, z, 2.48015872894767294178e-05);
  c = std::fma(c, z, -1.38888888888741095749e-03);
  c = std::fma(c, z, 4.16666666666666019037e-02);
  c = std::fma(c, z, -0.5);
  c = std::fma(c, z, 1.0);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {static_cast<float>(s), static_cast<float>(c)};
    case 1:
      return {static_cast<float>(c), static_cast<float>(-s)};
    case 2:
      return {static_cast<float>(-s), static_cast<float>(-c)};
    default:
      return {static_cast<float>(-c), static_cast<float>(s)};
  }
}

// IEEE half precision and bfloat16 to float: exact.
inline float HalfToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1Fu;
  const uint32_t mantissa = h & 0x3FFu;
  if (exponent == 0) {  // Zero and subnormal: mantissa * 2^-24.
    const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t bits =
      exponent == 31 ? 0x7F800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(bits | sign);
}
inline float Bf16ToF32(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

}  // namespace baton::kernels

#endif  // BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_H_
