// The wgmma kernel of prefill attention; one .cu a head dimension instantiates it.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_SM90_CUH_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_SM90_CUH_

#include <cstdint>

#include "kernels/launch/launch.cuh"
#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_sm90_consumer.cuh"
#include "kernels/prefill_attention/prefill_sm90_producer.cuh"
#include "kernels/prefill_attention/prefill_sm90_shared.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/ptx/register_allocation.cuh"

namespace baton::kernels {

template <typename C>
__device__ __forceinline__ void InitBarriers(Sm90Barriers<C>& barriers) {
  constexpr uint32_t kConsumerWarps = C::kConsumers * 4;
  for (int i = 0; i < C::kKeyStages; ++i) {
    ptx::MbarrierInit(&barriers.key_full[i], 1);
    ptx::MbarrierInit(&barriers.key_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < C::kValueStages; ++i) {
    ptx::MbarrierInit(&barriers.value_full[i], 1);
    ptx::MbarrierInit(&barriers.value_empty[i], kConsumerWarps);
  }
  for (int i = 0; i < C::kQueries; ++i) {
    for (int j = 0; j < C::kConsumers; ++j) {
      ptx::MbarrierInit(&barriers.query_full[i][j], 1);
      ptx::MbarrierInit(&barriers.query_empty[i][j], 4);
    }
  }
  for (int i = 0; i < C::kItems; ++i) {
    ptx::MbarrierInit(&barriers.item_full[i], 1);
    ptx::MbarrierInit(&barriers.item_empty[i], kConsumerWarps + C::kConsumers);
  }
  ptx::MbarrierInitFence();
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    PrefillAttentionSm90Kernel(const __grid_constant__ Sm90Params params) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Sm90Shared<C>& shared = *reinterpret_cast<Sm90Shared<C>*>(shared_bytes);
  if (threadIdx.x == 0) {
    ptx::TmaPrefetchDescriptor(reinterpret_cast<const CUtensorMap*>(&params.p.kv_map));
    InitBarriers<C>(shared.barriers);
  }
  __syncthreads();
  ptx::DependencyWait();
  ptx::DependencyTrigger();
  const int warpgroup = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == C::kConsumers) {
    ptx::ReleaseRegisters<C::kProducerRegisters>();
    const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x % 128 / 32), 0);
    if (warp == 0) {
      ProduceKeysAndValues<C>(params, shared);
    } else if (warp <= C::kConsumers) {
      ProduceQueries<C>(params, shared, warp - 1);
    }
  } else {
    ptx::AcquireRegisters<C::kConsumerRegisters>();
    Sm90Consumer<C>{.p = params.p, .shared = shared, .consumer = warpgroup}.Run();
  }
}

template <typename C>
KernelStatus LaunchPrefillSm90(const Sm90Params& params, CudaStream stream, LaunchOrder order) {
  static_assert(sizeof(Sm90Shared<C>) <= 227 * 1024);
  return Launch(LaunchConfig{.grid = dim3(static_cast<unsigned>(params.p.num_multiprocessors)),
                             .block = dim3(C::kThreads),
                             .shared_bytes = sizeof(Sm90Shared<C>),
                             .stream = stream,
                             .order = order},
                PrefillAttentionSm90Kernel<C>, params);
}

// One of the four kernels of a head dimension.
template <int kDim>
KernelStatus PrefillAttentionSm90OfDim(const Sm90Params& params, CudaStream stream,
                                       LaunchOrder order) {
  const bool softcap = params.p.softcap > 0;
  if (params.p.kv.type == HalfType::kBF16) {
    return softcap
               ? LaunchPrefillSm90<Sm90Config<HalfType::kBF16, kDim, true>>(params, stream, order)
               : LaunchPrefillSm90<Sm90Config<HalfType::kBF16, kDim, false>>(params, stream, order);
  }
  return softcap
             ? LaunchPrefillSm90<Sm90Config<HalfType::kF16, kDim, true>>(params, stream, order)
             : LaunchPrefillSm90<Sm90Config<HalfType::kF16, kDim, false>>(params, stream, order);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_SM90_CUH_
