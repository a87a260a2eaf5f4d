// out[i] of random_fill_cuda.h, [count] 16-bit values.
// Mapping: a thread makes 8 neighbouring elements (two Philox blocks) and stores 16 bytes.
// Bytes: 2 * count written; about 13 integer instructions an element, so bound by arithmetic: 770
// us a GB on an H200, 1.4 TB/s. It runs once, when a benchmark loads its weights.
#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;

template <HalfType kType>
__global__ void __launch_bounds__(kThreads) RandomFillKernel(const RandomFillCudaParams p) {
  using Traits = HalfTraits<kType>;
  ptx::DependencyWait();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t first = thread * kElements;
  if (first >= p.count) return;
  const auto block = static_cast<uint64_t>(thread) * 2;
  const RandomFillBlock a = RandomFillValues(block, p.seed, p.scale);
  const RandomFillBlock b = RandomFillValues(block + 1, p.seed, p.scale);
  const Floats8 x = {{a.value[0], a.value[1], a.value[2], a.value[3], b.value[0], b.value[1],
                      b.value[2], b.value[3]}};
  auto* out = static_cast<typename Traits::Element*>(p.out) + first;
  if (first + kElements <= p.count) {
    StoreHalves8<kType>(x, out);
    return;
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (first + i < p.count) out[i] = Traits::FromFloat(x.v[i]);
  }
}

}  // namespace

KernelStatus RandomFillCuda(const RandomFillCudaParams& p, CudaStream stream) {
  if (p.count < 0 || (p.count > 0 && p.out == nullptr) || !IsAligned16(p.out)) {
    return KernelStatus::kInvalidArgument;
  }
  const int64_t blocks = (p.count + kThreads * kElements - 1) / (kThreads * kElements);
  if (blocks == 0) return KernelStatus::kOk;
  if (blocks > INT32_MAX) return KernelStatus::kUnsupported;
  const LaunchConfig config = {
      .grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .stream = stream};
  return Launch(config,
                p.type == HalfType::kBF16 ? RandomFillKernel<HalfType::kBF16>
                                          : RandomFillKernel<HalfType::kF16>,
                p);
}

}  // namespace baton::kernels
