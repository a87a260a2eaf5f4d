// Skinny products of Llama-3-8B and 1B shapes, weights cold, in a graph of overlapped launches, and
// the whole chain of a decode step's products. sweep_skinny tries other
// configurations.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "kernels/linear/swiglu_cuda.h"
#include "kernels/norm/norm_cuda.h"

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
    residual_ = static_cast<float*>(DeviceAllocate(size_t{64} * 4096 * 4));
    const std::vector<float> ones(4096, 1.0f);
    gamma_ = static_cast<float*>(DeviceAllocate(4096 * 4));
    CopyToDevice(gamma_, ones.data(), 4096 * 4);
    counters_ = static_cast<uint32_t*>(DeviceAllocate(SkinnyLinearCounterBytes(num_sms_)));
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
  // Adds y to the residual stream and makes x of it, as between two products of a layer.
  AddNormCudaParams NormParams(int32_t rows) const {
    return {.delta = y_,
            .residual = residual_,
            .gamma = gamma_,
            .out = x_,
            .rows = rows,
            .cols = 4096,
            .epsilon = 1e-5f};
  }

 private:
  int num_sms_ = 0;
  uint16_t* weights_ = nullptr;
  uint16_t* x_ = nullptr;
  void* y_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  uint32_t* counters_ = nullptr;
  float* residual_ = nullptr;
  float* gamma_ = nullptr;
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

struct Variant {
  const char* name = "";
  SkinnyLinearConfig config = {};
  int64_t prefetch_bytes = kSkinnyPrefetchBytes;
};

KernelStatus RunVariant(SkinnyLinearParams p, const Variant& variant, CudaStream stream,
                        LaunchOrder order) {
  p.l2_prefetch_bytes = variant.prefetch_bytes;
  return SkinnyLinearWithConfig(p, variant.config, stream, order);
}

double Time(GpuBench& bench, const Shape& shape, int32_t rows, const Variant& variant,
            LaunchOrder order) {
  const auto sets =
      static_cast<int>(static_cast<int64_t>(Pool::kElements) / shape.WeightElements());
  const int calls = shape.n > 100000 ? 4 : 16;
  return bench.MedianMicrosecondsInGraph(
      [&](int i, CudaStream stream) {
        const SkinnyLinearParams p =
            SharedPool().Params(shape, rows, i % sets * shape.WeightElements());
        RequireOk(RunVariant(p, variant, stream, order));
      },
      calls, 9);
}

// All products of a decode step of the 8B model, layers over a rotating window of weights, and,
// with norms, a small kernel before three of the four.
double TimeStep(GpuBench& bench, int32_t rows, const Variant& variant, LaunchOrder order,
                bool norms) {
  constexpr int kLayers = 32;
  return bench.MedianMicrosecondsInGraph(
      [&](int, CudaStream stream) {
        int64_t next = 0;
        const auto run = [&](const Shape& shape) {
          if (norms && shape.k == 4096) {
            RequireOk(AddNormCuda(SharedPool().NormParams(rows), stream, order));
          }
          if (next + shape.WeightElements() > static_cast<int64_t>(Pool::kElements)) next = 0;
          RequireOk(RunVariant(SharedPool().Params(shape, rows, next), variant, stream, order));
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
      const double us = TimeStep(bench, rows, {}, order, false);
      bench.ReportBytes("skinny_linear_8b_step_m" + std::to_string(rows) +
                            (order == LaunchOrder::kAfter ? "_ordered" : ""),
                        us, StepBytes(rows));
    }
  }
}

BATON_GPU_BENCH(swiglu) {
  constexpr int32_t kRows = 4096;
  constexpr int32_t kN = 14336;
  const void* x = RandomDeviceHalves(HalfType::kBF16, size_t{kRows} * kN * 2, 1.0f, 9);
  void* y = DeviceAllocate(size_t{kRows} * kN * 2);
  const double us = bench.MedianMicroseconds([&](int, CudaStream stream) {
    RequireOk(Swiglu({.x = x, .x_stride = 2 * kN, .y = y, .y_stride = kN, .rows = kRows, .n = kN},
                     stream, LaunchOrder::kAfter));
  });
  bench.ReportBytes("swiglu_4096x14336", us, 6.0 * kRows * kN);
}

// Each variant twice, for the noise.
BATON_GPU_BENCH(sweep_skinny) {
  constexpr int64_t kMi = int64_t{1} << 20;
  const std::vector<Variant> variants = {
      {.name = "chosen"},
      {.name = "pre4", .prefetch_bytes = 4 * kMi},
      {.name = "pre12", .prefetch_bytes = 12 * kMi},
      {.name = "ring150", .config = {.ring_bytes = 150 * 1024}},
      {.name = "ring222", .config = {.ring_bytes = 222 * 1024}},
  };
  for (const char* round : {"_a", "_b"}) {
    for (const int32_t rows : {1, 16, 64}) {
      for (const Variant& variant : variants) {
        bench.ReportBytes("sweep_8b_step_m" + std::to_string(rows) + "_" + variant.name + round,
                          TimeStep(bench, rows, variant, LaunchOrder::kOverlapped, false),
                          StepBytes(rows));
        bench.ReportBytes(
            "sweep_8b_step_norms_m" + std::to_string(rows) + "_" + variant.name + round,
            TimeStep(bench, rows, variant, LaunchOrder::kOverlapped, true), StepBytes(rows));
      }
    }
  }
}

}  // namespace baton::kernels::testing
