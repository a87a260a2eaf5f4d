// Ordered accesses to device memory, for flags between blocks.
#ifndef BATON_KERNELS_PTX_MEMORY_ORDER_CUH_
#define BATON_KERNELS_PTX_MEMORY_ORDER_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// What this thread wrote or was told of by a barrier is visible to whoever acquires the value.
__device__ __forceinline__ void StoreRelease(uint32_t* at, uint32_t value) {
  asm volatile("fence.acq_rel.gpu;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value)
               : "memory");
}

__device__ __forceinline__ uint32_t LoadAcquire(const uint32_t* at) {
  uint32_t value = 0;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_MEMORY_ORDER_CUH_
