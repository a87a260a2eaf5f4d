// AddNormCuda: at decode in a graph (microseconds a call, launches overlapped), at prefill against
// the copy bandwidth.
#include "kernels/norm/norm_cuda.h"

#include <string>

#include "kernels/launch/gpu_bench_harness.h"

namespace baton::kernels {
namespace {

using testing::DeviceAllocate;
using testing::GpuBench;
using testing::RandomDeviceHalves;

constexpr int64_t kCols = 4096;

BATON_GPU_BENCH(norm) {
  constexpr int64_t kRowsMax = 8192;
  auto* delta =
      static_cast<uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kRowsMax * kCols, 1e-3f, 1));
  auto* out = static_cast<uint16_t*>(DeviceAllocate(kRowsMax * kCols * 2));
  auto* residual = static_cast<float*>(DeviceAllocate(kRowsMax * kCols * 4));
  auto* gamma = static_cast<float*>(RandomDeviceHalves(HalfType::kBF16, kCols * 2, 1, 2));
  for (const int64_t rows : {1, 8, 64, 256, 4096, 8192}) {
    const auto run = [&](int i, CudaStream stream) {
      const int64_t first = rows <= 64 ? i * rows * kCols : 0;
      AddNormCuda({.delta = delta + first,
                   .residual = residual + first,
                   .gamma = gamma,
                   .out = out + first,
                   .rows = rows,
                   .cols = kCols,
                   .epsilon = 1e-5f},
                  stream, LaunchOrder::kOverlapped);
    };
    const double us =
        rows <= 256 ? bench.MedianMicrosecondsInGraph(run, 100) : bench.MedianMicroseconds(run);
    bench.ReportBytes("norm/" + std::to_string(rows) + "x4096", us,
                      12.0 * static_cast<double>(rows * kCols));
  }
}

}  // namespace
}  // namespace baton::kernels
