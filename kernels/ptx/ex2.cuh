// ex2.approx (2 ulp, subnormals flushed): one instruction of the special function unit.
#ifndef BATON_KERNELS_PTX_EX2_CUH_
#define BATON_KERNELS_PTX_EX2_CUH_

namespace baton::kernels::ptx {

__device__ __forceinline__ float Ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_EX2_CUH_
