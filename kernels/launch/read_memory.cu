// Every byte of memory [bytes] is loaded once; bound by memory. For benchmarks only.
#include "kernels/launch/launch.cuh"
#include "kernels/launch/read_memory.h"

namespace baton::kernels::testing {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 8;

__global__ void __launch_bounds__(kThreads)
    ReadMemoryKernel(const uint4* memory, int64_t count, uint32_t* sink) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kLoads + threadIdx.x;
  uint32_t mixed = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= count) continue;
    const uint4 v = memory[at];
    mixed ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mixed == 0x9E3779B9u) *sink = mixed;  // Never of zeros; the compiler has to load them.
}

}  // namespace

KernelStatus ReadMemory(const void* memory, int64_t bytes, uint32_t* sink, CudaStream stream) {
  const int64_t count = bytes / 16;
  const int64_t blocks = (count + kThreads * kLoads - 1) / (kThreads * kLoads);
  return Launch(
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .stream = stream},
      ReadMemoryKernel, static_cast<const uint4*>(memory), count, sink);
}

}  // namespace baton::kernels::testing
