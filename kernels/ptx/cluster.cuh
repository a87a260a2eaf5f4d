// Thread block clusters and distributed shared memory (barrier.cluster, mapa, sm_90).
#ifndef BATON_KERNELS_PTX_CLUSTER_CUH_
#define BATON_KERNELS_PTX_CLUSTER_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

__device__ __forceinline__ uint32_t ClusterBlocks() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(count));
  return count;
}
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Every thread of the cluster arrives, then waits; writes to shared memory of any block before the
// arrival are visible after the wait. A block's shared memory may be touched by another only after
// a first barrier (it has started) and before the last one (it may have ended).
__device__ __forceinline__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void ClusterSync() {
  ClusterArrive();
  ClusterWait();
}

// The address, in the cluster's window, of what lies at `own` in the block with that rank.
__device__ __forceinline__ uint32_t AddressInBlock(const void* own, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(rank));
  return address;
}
__device__ __forceinline__ uint32_t LoadCluster32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t LoadCluster64(uint32_t address) {
  uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreCluster64(uint32_t address, uint64_t value) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}
__device__ __forceinline__ uint32_t AddCluster32(uint32_t address, uint32_t value) {
  uint32_t before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address), "r"(value)
               : "memory");
  return before;
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_CLUSTER_CUH_
