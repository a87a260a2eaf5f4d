// Array forms of the elementary functions, for whoever has a whole row. Vector code: the processor
// must have AVX2, FMA and F16C (device/cpu checks). Bits equal vector_math.h.
#ifndef BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_CPU_H_
#define BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_CPU_H_

#include <cstddef>

namespace baton::kernels {

// y[i] = f(x[i]) for i < n; x and y may be the same.
void ExpArray(const float* x, size_t n, float* y);
void LogArray(const float* x, size_t n, float* y);
void SiluArray(const float* x, size_t n, float* y);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_VECTOR_MATH_VECTOR_MATH_CPU_H_
