// cp.async (sm_80): copies from global to shared memory without passing through registers. Bytes
// beyond `source_bytes` are written as zeros and not read.
#ifndef BATON_KERNELS_PTX_CP_ASYNC_CUH_
#define BATON_KERNELS_PTX_CP_ASYNC_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// Both addresses aligned to 16 bytes; past the first-level cache.
__device__ __forceinline__ void CpAsync16(uint32_t shared, const void* global,
                                          uint32_t source_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

// Both addresses aligned to 4 bytes.
__device__ __forceinline__ void CpAsync4(uint32_t shared, const void* global,
                                         uint32_t source_bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Returns when all but the latest `kPending` groups of this thread have landed.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_CP_ASYNC_CUH_
