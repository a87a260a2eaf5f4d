// setmaxnreg (sm_90a): moves registers between the warpgroups of a block. All warps of a warpgroup
// execute it; kCount is a multiple of 8 from 24 to 256.
#ifndef BATON_KERNELS_PTX_REGISTER_ALLOCATION_CUH_
#define BATON_KERNELS_PTX_REGISTER_ALLOCATION_CUH_

namespace baton::kernels::ptx {

template <int kCount>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Waits until enough have been released.
template <int kCount>
__device__ __forceinline__ void AcquireRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_REGISTER_ALLOCATION_CUH_
