// residual[r, c] += delta[r, c];  out[r, c] = residual[r, c] / rms(residual[r, :]) * gamma[c]
// with residual float32 [rows, cols], gamma float32 [cols], delta and out 16 bits [rows, cols].
//
// Mapping: one block a row. A thread owns kVectors vectors of 8 neighbouring elements and keeps
// them in registers between the sum and the scaling, so each operand crosses memory once. One
// barrier: warps leave their sums in shared memory, then every warp adds all of them up.
// The form for other `cols` owns single elements in the same way.
//
// Bytes: rows * cols * (4 + 4 + 2 + 2), without delta rows * cols * (4 + 2); 3 FLOPs an element:
// bound by memory. Ideal at 4.2 TB/s for 4096 x 4096: 48 us. At decode (1 to 64 rows of 4096) it is
// bound by latency: one round trip to memory, a barrier, a store; gamma is in registers before the
// wait.
// Measured on an H200, us and share of the copy bandwidth, launches overlapped in a graph, data
// cold: 1 x 4096 1.6, 8 x 4096 1.7, 64 x 4096 3.1, 256 x 4096 3.8 (0.78); alone: 4096 x 4096 50.0
// (0.94), 8192 x 4096 99.1 (0.95).
#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/ptx/grid_dependency.cuh"

namespace baton::kernels {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int kScalarsMax = static_cast<int>(kAddNormColsMax / kThreadsMax);

// The sum over the block, in an order that depends on the number of threads only.
__device__ __forceinline__ float BlockSum(float x) {
  __shared__ float warp_sums[kThreadsMax / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) warp_sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = lane < static_cast<int>(blockDim.x) / 32 ? warp_sums[lane] : 0.0f;
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ __forceinline__ float InverseRms(float sum_of_squares, const AddNormCudaParams& p) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(p.cols) + p.epsilon);
}

template <HalfType kType, int kVectors>
__global__ void __launch_bounds__(kThreadsMax) AddNormKernel(const AddNormCudaParams p) {
  using Element = typename HalfTraits<kType>::Element;
  const auto cols = static_cast<int>(p.cols);
  const int64_t row_begin = static_cast<int64_t>(blockIdx.x) * p.cols;
  const auto column = [](int i) { return static_cast<int>((i * blockDim.x + threadIdx.x) * 8); };
  ptx::DependencyTrigger();
  Floats8 gamma[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) < cols) gamma[i] = LoadFloats8(p.gamma + column(i));
  }
  ptx::DependencyWait();
  float* residual = p.residual + row_begin;
  Floats8 x[kVectors];
  uint4 delta[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= cols) continue;
    x[i] = LoadFloats8(residual + column(i));
    if (p.delta != nullptr) {
      delta[i] = *reinterpret_cast<const uint4*>(static_cast<const Element*>(p.delta) + row_begin +
                                                 column(i));
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= cols) continue;
    if (p.delta != nullptr) {
      const Floats8 d = WidenHalves8<kType>(delta[i]);
      for (int j = 0; j < 8; ++j) x[i].v[j] += d.v[j];
      StoreFloats8(x[i], residual + column(i));
    }
    for (int j = 0; j < 8; ++j) sum = fmaf(x[i].v[j], x[i].v[j], sum);
  }
  const float inverse = InverseRms(BlockSum(sum), p);
  Element* out = static_cast<Element*>(p.out) + row_begin;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (column(i) >= cols) continue;
    for (int j = 0; j < 8; ++j) x[i].v[j] = x[i].v[j] * inverse * gamma[i].v[j];
    StoreHalves8<kType>(x[i], out + column(i));
  }
}

// Any number of columns and any alignment: element c belongs to thread c % blockDim.x.
template <HalfType kType>
__global__ void __launch_bounds__(kThreadsMax) AddNormScalarKernel(const AddNormCudaParams p) {
  using Traits = HalfTraits<kType>;
  using Element = typename Traits::Element;
  const auto cols = static_cast<int>(p.cols);
  const int64_t row_begin = static_cast<int64_t>(blockIdx.x) * p.cols;
  const auto column = [](int i) { return static_cast<int>(i * blockDim.x + threadIdx.x); };
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  float* residual = p.residual + row_begin;
  float x[kScalarsMax];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kScalarsMax; ++i) {
    if (column(i) >= cols) continue;
    x[i] = residual[column(i)];
    if (p.delta != nullptr) {
      x[i] += Traits::ToFloat(static_cast<const Element*>(p.delta)[row_begin + column(i)]);
      residual[column(i)] = x[i];
    }
    sum = fmaf(x[i], x[i], sum);
  }
  const float inverse = InverseRms(BlockSum(sum), p);
  Element* out = static_cast<Element*>(p.out) + row_begin;
#pragma unroll
  for (int i = 0; i < kScalarsMax; ++i) {
    if (column(i) >= cols) continue;
    out[column(i)] = Traits::FromFloat(x[i] * inverse * p.gamma[column(i)]);
  }
}

unsigned WarpsOf(int64_t threads) { return static_cast<unsigned>((threads + 31) / 32 * 32); }

template <HalfType kType>
KernelStatus LaunchAddNorm(const AddNormCudaParams& p, LaunchConfig config) {
  const bool vectors = p.cols % 8 == 0 && IsAligned16(p.delta) && IsAligned16(p.residual) &&
                       IsAligned16(p.gamma) && IsAligned16(p.out);
  if (!vectors) {
    config.block = dim3(p.cols >= kThreadsMax ? kThreadsMax : WarpsOf(p.cols));
    return Launch(config, AddNormScalarKernel<kType>, p);
  }
  // One vector a thread is quicker than two at every number of rows.
  const int vectors_per_thread = p.cols <= 8 * kThreadsMax ? 1 : 2;
  config.block = dim3(WarpsOf((p.cols / 8 + vectors_per_thread - 1) / vectors_per_thread));
  return vectors_per_thread == 1 ? Launch(config, AddNormKernel<kType, 1>, p)
                                 : Launch(config, AddNormKernel<kType, 2>, p);
}

}  // namespace

KernelStatus AddNormCuda(const AddNormCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.rows < 0 || p.cols < 1) return KernelStatus::kInvalidArgument;
  if (p.cols > kAddNormColsMax || p.rows > INT32_MAX) return KernelStatus::kUnsupported;
  if (p.rows == 0) return KernelStatus::kOk;
  if (p.residual == nullptr || p.gamma == nullptr || p.out == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  const LaunchConfig config = {
      .grid = dim3(static_cast<unsigned>(p.rows)), .block = {}, .stream = stream, .order = order};
  return p.type == HalfType::kBF16 ? LaunchAddNorm<HalfType::kBF16>(p, config)
                                   : LaunchAddNorm<HalfType::kF16>(p, config);
}

}  // namespace baton::kernels
