// Products of many rows of Llama-3-8B's shapes in the order of sums of SkinnyLinear, weights cold,
// overlapped launches in a graph, beside SkinnyLinear itself, up to its limit of rows.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/linear/fixed_linear_cuda.h"
#include "kernels/linear/skinny_linear_cuda.h"

namespace baton::kernels::testing {
namespace {

constexpr size_t kPoolElements = size_t{1200} << 20;
constexpr int32_t kRowsMax = 4096;

struct Shape {
  const char* name;
  int32_t n;
  int32_t k;
  bool gated = false;
  int64_t WeightElements() const { return int64_t{n} * k * (gated ? 2 : 1); }
};
constexpr Shape kShapes[] = {{"8b_qkv", 6144, 4096},
                             {"8b_o", 4096, 4096},
                             {"8b_gate_up", 14336, 4096, true},
                             {"8b_down", 4096, 14336}};

void RequireOk(KernelStatus status) {
  if (status == KernelStatus::kOk) return;
  std::fprintf(stderr, "fixed linear: %s\n", KernelStatusName(status));
  std::abort();
}

class Pool {
 public:
  Pool() {
    cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0);
    w_ = static_cast<const uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kPoolElements, 0.02f, 3));
    x_ = static_cast<const uint16_t*>(
        RandomDeviceHalves(HalfType::kBF16, size_t{kRowsMax} * 14336, 1, 4));
    y_ = static_cast<uint16_t*>(DeviceAllocate(size_t{kRowsMax} * 14336 * 2));
    workspace_bytes_ = SkinnyLinearWorkspaceBytes(kSkinnyRowsMax, num_sms_);
    workspace_ = DeviceAllocate(workspace_bytes_);
    counters_ = static_cast<uint32_t*>(DeviceAllocate(SkinnyLinearCounterBytes(num_sms_)));
  }
  int num_sms() const { return num_sms_; }

  void RunFixed(const Shape& shape, int32_t rows, const FixedLinearPlan& plan, int i,
                CudaStream stream) const {
    RequireOk(FixedLinearWithPlan({.x = x_,
                                   .x_stride = shape.k,
                                   .w = Weights(shape, i),
                                   .y = y_,
                                   .y_stride = shape.n,
                                   .gated = shape.gated,
                                   .rows = rows,
                                   .n = shape.n,
                                   .k = shape.k,
                                   .num_sms = num_sms_},
                                  plan, stream, LaunchOrder::kOverlapped));
  }
  void RunSkinny(const Shape& shape, int32_t rows, int32_t piece_rows, int i,
                 CudaStream stream) const {
    for (int64_t row = 0; row < rows; row += piece_rows) {
      RequireOk(SkinnyLinear({.x = x_ + row * shape.k,
                              .x_stride = shape.k,
                              .w = Weights(shape, i),
                              .y = y_ + row * shape.n,
                              .y_stride = shape.n,
                              .gated = shape.gated,
                              .rows = std::min(piece_rows, rows - static_cast<int32_t>(row)),
                              .n = shape.n,
                              .k = shape.k,
                              .num_sms = num_sms_,
                              .workspace = workspace_,
                              .workspace_bytes = workspace_bytes_,
                              .counters = counters_},
                             stream, LaunchOrder::kOverlapped));
    }
  }

 private:
  const uint16_t* Weights(const Shape& shape, int i) const {
    const int64_t sets = static_cast<int64_t>(kPoolElements) / shape.WeightElements();
    return w_ + i % sets * shape.WeightElements();
  }

  int num_sms_ = 0;
  const uint16_t* w_ = nullptr;
  const uint16_t* x_ = nullptr;
  uint16_t* y_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  uint32_t* counters_ = nullptr;
};

const Pool& SharedPool() {
  static const Pool pool;
  return pool;
}

void Time(GpuBench& bench, const std::string& name, const Shape& shape, int32_t rows,
          const std::function<void(int, CudaStream)>& run) {
  const double us = bench.MedianMicrosecondsInGraph(run, 8, 9);
  bench.ReportProduct(name + "_" + shape.name + "_m" + std::to_string(rows), us,
                      2.0 * rows * static_cast<double>(shape.WeightElements()));
}

}  // namespace

BATON_GPU_BENCH(fixed_linear) {
  const Pool& pool = SharedPool();
  for (const Shape& shape : kShapes) {
    for (const int32_t rows : {128, 256, 512, 2048, kRowsMax}) {
      const FixedLinearPlan plan =
          PlanFixedLinear({rows, shape.n, shape.k, shape.gated}, pool.num_sms());
      Time(bench, "fixed_linear", shape, rows,
           [&](int i, CudaStream stream) { pool.RunFixed(shape, rows, plan, i, stream); });
      if (rows > kSkinnyRowsMax) continue;
      Time(bench, "fixed_linear_by_skinny", shape, rows,
           [&](int i, CudaStream stream) { pool.RunSkinny(shape, rows, 256, i, stream); });
    }
  }
}

}  // namespace baton::kernels::testing
