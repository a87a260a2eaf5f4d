// Named barriers (bar.sync, bar.arrive): 16 a block, each for any number of whole warps. Barrier 0
// is __syncthreads.
#ifndef BATON_KERNELS_PTX_NAMED_BARRIER_CUH_
#define BATON_KERNELS_PTX_NAMED_BARRIER_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// Waits until `threads` threads have called this or NamedBarrierArrive, this one included.
__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// NamedBarrierSync that tells whether any of the threads gave true.
__device__ __forceinline__ bool NamedBarrierAny(int id, int threads, bool mine) {
  uint32_t any = 0;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(mine))
      : "memory");
  return __any_sync(0xFFFFFFFF, any != 0);  // So that the compiler knows it to be uniform.
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_NAMED_BARRIER_CUH_
