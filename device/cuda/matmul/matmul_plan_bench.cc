// cuBLASLt, best of its tuned candidates, on the products of Llama-3-8B: with few rows as the
// anchor of the skinny kernel, with many as what prefill gets and as the anchor of FixedLinear.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/cuda/matmul/matmul_plan.h"
#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/linear/fixed_linear_cuda.h"
#include "kernels/linear/skinny_linear_cuda.h"

namespace baton::cuda {
namespace {

using kernels::HalfType;
using kernels::KernelStatus;
using kernels::LaunchOrder;
using kernels::testing::DeviceAllocate;
using kernels::testing::GpuBench;
using kernels::testing::RandomDeviceHalves;

constexpr size_t kPoolElements = size_t{1200} << 20;
constexpr size_t kWorkspaceBytes = size_t{64} << 20;

struct Shape {
  const char* name;
  int32_t n;
  int32_t k;
  bool f32;
};
constexpr Shape kShapes[] = {{"8b_qkv", 6144, 4096, false},
                             {"8b_o", 4096, 4096, false},
                             {"8b_gate_up", 28672, 4096, false},
                             {"8b_down", 4096, 14336, false},
                             {"8b_head", 128256, 4096, true}};

struct Buffers {
  const uint16_t* w =
      static_cast<uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kPoolElements, 0.02f, 3));
  const void* x = RandomDeviceHalves(HalfType::kBF16, size_t{4096} * 14336, 1, 4);
  void* y = DeviceAllocate(size_t{4096} * 28672 * 2);
  void* workspace = DeviceAllocate(kWorkspaceBytes);
  void* skinny_workspace = DeviceAllocate(kernels::SkinnyLinearWorkspaceBytes(64, 132));
  uint32_t* counters =
      static_cast<uint32_t*>(DeviceAllocate(kernels::SkinnyLinearCounterBytes(132)));
};

void RequireOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

MatmulParams Params(const Shape& shape, const Buffers& buffers, int32_t rows, int i) {
  const int64_t elements = int64_t{shape.n} * shape.k;
  const int64_t sets = static_cast<int64_t>(kPoolElements) / elements;
  return {.shape = {.n = shape.n, .k = shape.k, .y_is_f32 = shape.f32},
          .rows = rows,
          .x = buffers.x,
          .x_stride = shape.k,
          .w = buffers.w + i % sets * elements,
          .y = buffers.y,
          .y_stride = shape.n};
}

double SkinnyMicroseconds(GpuBench& bench, const Shape& shape, const Buffers& buffers, int32_t rows,
                          int calls) {
  return bench.MedianMicrosecondsInGraph(
      [&](int i, kernels::CudaStream stream) {
        const MatmulParams p = Params(shape, buffers, rows, i);
        const KernelStatus status =
            kernels::SkinnyLinear({.x = p.x,
                                   .x_stride = p.x_stride,
                                   .w = p.w,
                                   .y = p.y,
                                   .y_stride = p.y_stride,
                                   .y_is_f32 = shape.f32,
                                   .rows = rows,
                                   .n = shape.n,
                                   .k = shape.k,
                                   .num_sms = 132,
                                   .workspace = buffers.skinny_workspace,
                                   .workspace_bytes = kernels::SkinnyLinearWorkspaceBytes(64, 132),
                                   .counters = buffers.counters},
                                  stream, LaunchOrder::kOverlapped);
        if (status != KernelStatus::kOk) std::abort();
      },
      calls, 9);
}

KernelStatus RunFixed(const Shape& shape, const MatmulParams& p, kernels::CudaStream stream) {
  return kernels::FixedLinear({.x = p.x,
                               .x_stride = p.x_stride,
                               .w = p.w,
                               .y = p.y,
                               .y_stride = p.y_stride,
                               .rows = p.rows,
                               .n = shape.n,
                               .k = shape.k,
                               .num_sms = 132},
                              stream, LaunchOrder::kOverlapped);
}

}  // namespace

// Large products are bound by power: long graphs, turn by turn, and the last turn counts.
BATON_GPU_BENCH(fixed_vs_cublaslt) {
  const Buffers buffers;
  const auto plans = MatmulPlans::Create({.buckets = {512, 2048, 4096},
                                          .library = {.workspace = buffers.workspace,
                                                      .workspace_bytes = kWorkspaceBytes}})
                         .value();
  for (const Shape& shape : kShapes) {
    if (shape.f32) continue;
    const MatmulParams any = Params(shape, buffers, 4096, 0);
    RequireOk(plans->Prepare(any.shape, 4096, any.w, std::chrono::seconds(2), bench.stream()));
    for (const int32_t rows : {512, 2048, 4096}) {
      double us[2] = {};  // cuBLASLt, FixedLinear
      for (int turn = 0; turn < 4; ++turn) {
        us[turn % 2] = bench.MedianMicrosecondsInGraph(
            [&](int i, kernels::CudaStream stream) {
              const MatmulParams p = Params(shape, buffers, rows, i);
              if (turn % 2 == 0) {
                RequireOk(plans->Run(p, stream));
              } else if (RunFixed(shape, p, stream) != KernelStatus::kOk) {
                std::abort();
              }
            },
            32, 7);
      }
      bench.Report(
          {.name = "fixed_vs_cublaslt_" + std::string(shape.name) + "_m" + std::to_string(rows),
           .value = us[1],
           .unit = "us",
           .anchor = "cuBLASLt",
           .anchor_value = us[0],
           .ratio = us[0] / us[1]});
    }
  }
}

BATON_GPU_BENCH(matmul_plan) {
  const Buffers buffers;
  const auto plans = MatmulPlans::Create({.buckets = {1, 8, 16, 32, 64, 128, 256, 4096},
                                          .library = {.workspace = buffers.workspace,
                                                      .workspace_bytes = kWorkspaceBytes}})
                         .value();
  for (const Shape& shape : kShapes) {
    const MatmulParams any = Params(shape, buffers, 1, 0);
    RequireOk(plans->Prepare(any.shape, shape.f32 ? 64 : 4096, any.w, std::chrono::seconds(5),
                             bench.stream()));
    for (const int32_t rows : {1, 8, 16, 32, 64}) {
      const int calls = shape.f32 ? 4 : 16;
      const double us = bench.MedianMicrosecondsInGraph(
          [&](int i, kernels::CudaStream stream) {
            RequireOk(plans->Run(Params(shape, buffers, rows, i), stream));
          },
          calls, 9);
      const double skinny_us = SkinnyMicroseconds(bench, shape, buffers, rows, calls);
      bench.Report(
          {.name = "skinny_vs_cublaslt_" + std::string(shape.name) + "_m" + std::to_string(rows),
           .value = skinny_us,
           .unit = "us",
           .anchor = "cuBLASLt",
           .anchor_value = us,
           .ratio = us / skinny_us});
    }
    if (shape.f32) continue;
    for (const int32_t rows : {128, 256, 4096}) {
      const double us = bench.MedianMicroseconds(
          [&](int i, kernels::CudaStream stream) {
            RequireOk(plans->Run(Params(shape, buffers, rows, i), stream));
          },
          11);
      bench.ReportProduct("matmul_" + std::string(shape.name) + "_m" + std::to_string(rows), us,
                          2.0 * rows * shape.n * shape.k);
    }
  }
}

}  // namespace baton::cuda
