// Named barriers (bar.sync, bar.arrive): 16 a block, each for any number of whole warps. Barrier 0
// is __syncthreads.
#ifndef BATON_KERNELS_PTX_NAMED_BARRIER_CUH_
#define BATON_KERNELS_PTX_NAMED_BARRIER_CUH_

namespace baton::kernels::ptx {

// Waits until `threads` threads have called this or NamedBarrierArrive, this one included.
__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_NAMED_BARRIER_CUH_
