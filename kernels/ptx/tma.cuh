// The bulk tensor copy engine (cp.async.bulk.tensor, sm_90). Boxes of a tensor map, elements
// outside of the tensor read as zero. Coordinates are in elements, innermost first.
#ifndef BATON_KERNELS_PTX_TMA_CUH_
#define BATON_KERNELS_PTX_TMA_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baton::kernels::ptx {

// Cache policies of 64 bits, as createpolicy would make them for the whole access.
inline constexpr uint64_t kL2EvictNormal = 0x1000000000000000ull;
inline constexpr uint64_t kL2EvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kL2EvictLast = 0x14F0000000000000ull;

// Brings the descriptor itself near; `map` must be a __grid_constant__ parameter.
__device__ __forceinline__ void TmaPrefetchDescriptor(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Starts the copy of one box to shared memory (aligned to 128 bytes; to 1024 with a 128-byte
// swizzle); its bytes count on `barrier`.
__device__ __forceinline__ void TmaLoad2d(void* shared, const CUtensorMap* map, int32_t x,
                                          int32_t y, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}

// Starts the copy of one box to L2.
__device__ __forceinline__ void TmaPrefetch2d(const CUtensorMap* map, int32_t x, int32_t y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}

// Starts the copy of `bytes` (a multiple of 16, as the address) to L2.
__device__ __forceinline__ void PrefetchL2(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(bytes)
               : "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_TMA_CUH_
