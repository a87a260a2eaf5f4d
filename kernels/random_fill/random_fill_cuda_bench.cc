// RandomFillCuda of 1 GB: what loading random weights costs.
#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton::kernels {
namespace {

BATON_GPU_BENCH(random_fill) {
  constexpr int64_t kCount = int64_t{1} << 29;
  void* out = testing::DeviceAllocate(kCount * 2);
  const double us = bench.MedianMicroseconds([&](int, CudaStream stream) {
    RandomFillCuda({.out = out, .count = kCount, .scale = 0.02f, .seed = 1}, stream);
  });
  bench.ReportBytes("random_fill/1GB", us, 2.0 * kCount);
}

}  // namespace
}  // namespace baton::kernels
