// fence.proxy.async (sm_90): orders this thread's ordinary accesses to shared memory before later
// ones by wgmma and the copy engine, which see it by another path.
#ifndef BATON_KERNELS_PTX_PROXY_FENCE_CUH_
#define BATON_KERNELS_PTX_PROXY_FENCE_CUH_

namespace baton::kernels::ptx {

__device__ __forceinline__ void FenceProxyAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_PROXY_FENCE_CUH_
