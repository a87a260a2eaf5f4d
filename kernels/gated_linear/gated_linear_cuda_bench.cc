// Gated products of Llama-3-8B's and 1B's shapes, weights cold, overlapped launches in a graph.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/gated_linear/gated_linear_cuda.h"
#include "kernels/launch/gpu_bench_harness.h"

namespace baton::kernels::testing {
namespace {

constexpr size_t kPoolElements = size_t{1200} << 20;
constexpr int32_t kRowsMax = 4096;

struct Shape {
  const char* name;
  int32_t n;
  int32_t k;
};
constexpr Shape kShapes[] = {{"8b", 14336, 4096}, {"1b", 8192, 2048}};

}  // namespace

BATON_GPU_BENCH(gated_linear) {
  int num_sms = 0;
  cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0);
  const auto* w =
      static_cast<const uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kPoolElements, 0.02f, 3));
  const void* x = RandomDeviceHalves(HalfType::kBF16, size_t{kRowsMax} * 4096, 1, 4);
  void* y = DeviceAllocate(size_t{kRowsMax} * 14336 * 2);
  for (const Shape& shape : kShapes) {
    const int64_t elements = int64_t{2} * shape.n * shape.k;
    const int64_t sets = static_cast<int64_t>(kPoolElements) / elements;
    for (const int32_t rows : {128, 192, 256, 512, 1024, kRowsMax}) {
      const double us = bench.MedianMicrosecondsInGraph(
          [&](int i, CudaStream stream) {
            const KernelStatus status = GatedLinear({.x = x,
                                                     .x_stride = shape.k,
                                                     .w = w + i % sets * elements,
                                                     .y = y,
                                                     .y_stride = shape.n,
                                                     .rows = rows,
                                                     .n = shape.n,
                                                     .k = shape.k,
                                                     .num_sms = num_sms},
                                                    stream, LaunchOrder::kOverlapped);
            if (status != KernelStatus::kOk) std::abort();
          },
          8, 9);
      bench.ReportProduct("gated_linear_" + std::string(shape.name) + "_m" + std::to_string(rows),
                          us, 2.0 * rows * static_cast<double>(elements));
    }
  }
}

}  // namespace baton::kernels::testing
