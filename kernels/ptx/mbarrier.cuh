// mbarrier (sm_90): a barrier in shared memory that counts arrivals of threads and bytes of the
// copy engine. A phase ends when both counts are reached; the next one begins at once. Waiters name
// the parity of the phase they wait for (0 for the first).
#ifndef BATON_KERNELS_PTX_MBARRIER_CUH_
#define BATON_KERNELS_PTX_MBARRIER_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// The 32-bit address in shared memory that PTX instructions take.
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// One thread, before the __syncthreads that publishes the barrier.
__device__ __forceinline__ void MbarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to the copy engine (and to other blocks of the cluster).
__device__ __forceinline__ void MbarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void MbarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}

// Arrives, and adds `bytes` to what the copy engine must deliver before the phase ends.
__device__ __forceinline__ void MbarrierArriveExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ bool MbarrierTryWait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Returns when the phase of this parity has ended; what it delivered is then visible.
__device__ __forceinline__ void MbarrierWait(uint64_t* barrier, uint32_t parity) {
  while (!MbarrierTryWait(barrier, parity)) {
  }
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_MBARRIER_CUH_
