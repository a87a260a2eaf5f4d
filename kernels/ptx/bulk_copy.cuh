// What a large product needs beside the plain copies of tma.cuh: boxes for several blocks of a
// cluster at once, arrivals at another block's barrier, rows from shared memory to global memory by
// the copy engine, and stmatrix.
#ifndef BATON_KERNELS_PTX_BULK_COPY_CUH_
#define BATON_KERNELS_PTX_BULK_COPY_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/mbarrier.cuh"

namespace baton::kernels::ptx {

// TmaLoad2d to the same place in every block of the cluster whose bit is set in `blocks`; the bytes
// count on the barrier at the same place in each of them.
__device__ __forceinline__ void TmaLoad2dMulticast(void* shared, const CUtensorMap* map, int32_t x,
                                                   int32_t y, uint64_t* barrier, uint16_t blocks,
                                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
          SharedAddress(shared)),
      "l"(map), "r"(x), "r"(y), "r"(SharedAddress(barrier)), "h"(blocks), "l"(policy)
      : "memory");
}

// Arrives at a barrier of any block of the cluster; `address` is of AddressInBlock (cluster.cuh).
// Publishes nothing to other blocks (with cluster scope it would: by a fence of the whole GPU, each
// time): it says that wgmma, which has been waited for, needs a stage no more.
__device__ __forceinline__ void MbarrierArriveCluster(uint32_t address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// Starts copying `bytes` (a multiple of 16, both addresses too) from shared to global memory. The
// thread that starts copies also commits them and waits.
__device__ __forceinline__ void BulkStore(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(SharedAddress(shared)), "r"(bytes)
               : "memory");
}
// The same for a box of a tensor map; what of it lies outside of the tensor is not written.
__device__ __forceinline__ void TmaStore2d(const CUtensorMap* map, int32_t x, int32_t y,
                                           const void* shared) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(SharedAddress(shared))
      : "memory");
}
__device__ __forceinline__ void BulkCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until this thread's copies have read their shared memory.
__device__ __forceinline__ void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Until this thread's copies have been written.
__device__ __forceinline__ void BulkWait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Four 8x8 matrices of 16-bit elements, register i in the layout of D of wgmma rounded and packed;
// lanes 8i to 8i + 7 name the 16-byte rows of matrix i.
__device__ __forceinline__ void StoreMatrix4(void* row, uint32_t a, uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(SharedAddress(row)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
// The same with every matrix transposed: a row in shared memory is a column of D.
__device__ __forceinline__ void StoreMatrix4Transposed(void* row, uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   SharedAddress(row)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_BULK_COPY_CUH_
