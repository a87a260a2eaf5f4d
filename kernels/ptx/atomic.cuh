// Atomic operations with an order (sm_70 and later).
#ifndef BATON_KERNELS_PTX_ATOMIC_CUH_
#define BATON_KERNELS_PTX_ATOMIC_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// Adds and returns the old value. What this thread wrote before, and what it saw of other threads'
// writes (behind a barrier of the thread block, too), is visible to whoever reads the new value by
// such an operation, and to those that it then releases by a barrier. Cheaper than two
// __threadfence() round a plain atomicAdd.
__device__ __forceinline__ int32_t AtomicAddAcquireRelease(int32_t* address, int32_t value) {
  int32_t old = 0;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_ATOMIC_CUH_
