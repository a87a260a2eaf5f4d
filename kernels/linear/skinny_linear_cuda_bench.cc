// Skinny products of Llama-3-8B and 1B shapes, weights cold, in a graph of overlapped launches, and
// the whole chain of a decode step's products. Set BATON_SKINNY_SWEEP to try other configurations.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/linear/skinny_linear_cuda.h"

namespace baton::kernels::testing {
namespace {

struct Shape {
  const char* name;
  int32_t n;
  int32_t k;
  bool gated = false;
  bool f32 = false;
  int64_t WeightElements() const { return int64_t{n} * k * (gated ? 2 : 1); }
};

constexpr Shape kQkv8b = {"8b_qkv", 6144, 4096};
constexpr Shape kO8b = {"8b_o", 4096, 4096};
constexpr Shape kGateUp8b = {"8b_gate_up", 14336, 4096, true};
constexpr Shape kDown8b = {"8b_down", 4096, 14336};
constexpr Shape kHead8b = {"8b_head", 128256, 4096, false, true};
constexpr Shape kShapes[] = {kQkv8b,
                             kO8b,
                             kGateUp8b,
                             kDown8b,
                             kHead8b,
                             {"1b_qkv", 3072, 2048},
                             {"1b_o", 2048, 2048},
                             {"1b_gate_up", 8192, 2048, true},
                             {"1b_down", 2048, 8192},
                             {"1b_head", 128256, 2048, false, true}};

// Weights of all benches are windows of one pool of random values.
class Pool {
 public:
  static constexpr size_t kElements = size_t{1536} << 20;
  static constexpr int64_t kWorkspaceRows = 64;
  explicit Pool() {
    cudaDeviceGetAttribute(&num_sms_, cudaDevAttrMultiProcessorCount, 0);
    weights_ = static_cast<uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kElements, 0.02f, 7));
    x_ = static_cast<uint16_t*>(RandomDeviceHalves(HalfType::kBF16, 64 * 14336, 1.0f, 8));
    y_ = DeviceAllocate(size_t{64} * 128256 * 4);
    workspace_bytes_ = SkinnyLinearWorkspaceBytes(64, num_sms_);
    workspace_ = DeviceAllocate(workspace_bytes_);
    counters_ = static_cast<uint32_t*>(DeviceAllocate(SkinnyLinearCounterBytes(128256)));
  }
  SkinnyLinearParams Params(const Shape& shape, int32_t rows, int64_t first_element) const {
    return {.x = x_,
            .x_stride = shape.k,
            .w = weights_ + first_element,
            .y = y_,
            .y_stride = shape.n,
            .y_is_f32 = shape.f32,
            .gated = shape.gated,
            .rows = rows,
            .n = shape.n,
            .k = shape.k,
            .num_sms = num_sms_,
            .workspace = workspace_,
            .workspace_bytes = workspace_bytes_,
            .counters = counters_};
  }

 private:
  int num_sms_ = 0;
  uint16_t* weights_ = nullptr;
  uint16_t* x_ = nullptr;
  void* y_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  uint32_t* counters_ = nullptr;
};

Pool& SharedPool() {
  static Pool pool;
  return pool;
}

void RequireOk(KernelStatus status) {
  if (status == KernelStatus::kOk) return;
  std::fprintf(stderr, "skinny linear: %s\n", KernelStatusName(status));
  std::abort();
}

double Bytes(const Shape& shape, int32_t rows) {
  return 2.0 * static_cast<double>(shape.WeightElements()) + 2.0 * rows * shape.k +
         (shape.f32 ? 4.0 : 2.0) * rows * shape.n;
}

double Time(GpuBench& bench, const Shape& shape, int32_t rows, const SkinnyLinearConfig& config,
            LaunchOrder order) {
  const auto sets =
      static_cast<int>(static_cast<int64_t>(Pool::kElements) / shape.WeightElements());
  const int calls = shape.n > 100000 ? 4 : 16;
  return bench.MedianMicrosecondsInGraph(
      [&](int i, CudaStream stream) {
        const SkinnyLinearParams p =
            SharedPool().Params(shape, rows, i % sets * shape.WeightElements());
        RequireOk(SkinnyLinearWithConfig(p, config, stream, order));
      },
      calls, 9);
}

// All products of a decode step of the 8B model, layers over a rotating window of weights.
double TimeStep(GpuBench& bench, int32_t rows, const SkinnyLinearConfig& config,
                LaunchOrder order) {
  constexpr int kLayers = 32;
  return bench.MedianMicrosecondsInGraph(
      [&](int, CudaStream stream) {
        int64_t next = 0;
        const auto run = [&](const Shape& shape) {
          if (next + shape.WeightElements() > static_cast<int64_t>(Pool::kElements)) next = 0;
          RequireOk(SkinnyLinearWithConfig(SharedPool().Params(shape, rows, next), config, stream,
                                           order));
          next += shape.WeightElements();
        };
        for (int layer = 0; layer < kLayers; ++layer) {
          for (const Shape& shape : {kQkv8b, kO8b, kGateUp8b, kDown8b}) run(shape);
        }
        run(kHead8b);
      },
      1, 9);
}

double StepBytes(int32_t rows) {
  return 32 * (Bytes(kQkv8b, rows) + Bytes(kO8b, rows) + Bytes(kGateUp8b, rows) +
               Bytes(kDown8b, rows)) +
         Bytes(kHead8b, rows);
}

}  // namespace

BATON_GPU_BENCH(skinny_linear) {
  for (const Shape& shape : kShapes) {
    for (const int32_t rows : {1, 2, 4, 8, 16, 32, 64}) {
      const double us = Time(bench, shape, rows, {}, LaunchOrder::kOverlapped);
      bench.ReportBytes("skinny_linear_" + std::string(shape.name) + "_m" + std::to_string(rows),
                        us, Bytes(shape, rows));
    }
  }
}

BATON_GPU_BENCH(skinny_linear_step) {
  for (const int32_t rows : {1, 8, 64}) {
    for (const LaunchOrder order : {LaunchOrder::kAfter, LaunchOrder::kOverlapped}) {
      const double us = TimeStep(bench, rows, {}, order);
      bench.ReportBytes("skinny_linear_8b_step_m" + std::to_string(rows) +
                            (order == LaunchOrder::kAfter ? "_ordered" : ""),
                        us, StepBytes(rows));
    }
  }
}

BATON_GPU_BENCH(sweep_skinny) {
  const std::vector<SkinnyLinearConfig> configs = {
      {.warpgroups = 2, .chunk_boxes = 1},
      {.warpgroups = 2, .chunk_boxes = 1, .l2_promotion_bytes = 128},
      {.warpgroups = 2, .chunk_boxes = 1, .shared_bytes_max = 200 * 1024},
      {.warpgroups = 2, .chunk_boxes = 2},
      {.warpgroups = 2, .chunk_boxes = 2, .shared_bytes_max = 200 * 1024},
      {.warpgroups = 1, .chunk_boxes = 1},
      {.warpgroups = 1, .chunk_boxes = 2},
      {.warpgroups = 1, .chunk_boxes = 2, .shared_bytes_max = 200 * 1024},
      {.warpgroups = 4, .chunk_boxes = 1},
      {.warpgroups = 4, .chunk_boxes = 1, .shared_bytes_max = 208 * 1024},
  };
  for (const SkinnyLinearConfig& config : configs) {
    const std::string suffix = "_w" + std::to_string(config.warpgroups) + "_b" +
                               std::to_string(config.chunk_boxes) + "_s" +
                               std::to_string(config.shared_bytes_max / 1024) + "_p" +
                               std::to_string(config.l2_promotion_bytes);
    for (const int32_t rows : {1, 16, 64}) {
      for (const Shape& shape : {kQkv8b, kO8b, kGateUp8b, kDown8b, kHead8b}) {
        bench.ReportBytes("sweep_" + std::string(shape.name) + "_m" + std::to_string(rows) + suffix,
                          Time(bench, shape, rows, config, LaunchOrder::kOverlapped),
                          Bytes(shape, rows));
      }
      bench.ReportBytes("sweep_8b_step_m" + std::to_string(rows) + suffix,
                        TimeStep(bench, rows, config, LaunchOrder::kOverlapped), StepBytes(rows));
    }
  }
}

}  // namespace baton::kernels::testing
