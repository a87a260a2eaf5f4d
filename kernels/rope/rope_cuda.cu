// RopeAnglesCuda: out[r, 0, i] = cos(positions[r] * f[i]) * scale, out[r, 1, i] = sin(...) * scale.
// RopeKvWriteCuda, with a = angles[r]: for each head x of queries and keys, and i < half =
// head_dim/2,
//   y[i] = x[i] * a.cos[i] - x[i + half] * a.sin[i];  y[i + half] = x[i + half] * a.cos[i] + x[i] *
//   a.sin[i]
// queries to q [rows, num_heads, head_dim], keys and (unrotated) values to the pool at slots[r].
//
// Mapping: blockIdx.x is a row, blockIdx.y a range of its heads (one range when there are rows
// enough to fill the chip). A group of 2^g >= half / 8 lanes takes a head: lane l holds elements
// [8l, 8l + 8) of both halves, so both elements of a pair are in one thread, and keeps the angles
// of these over the group's heads. Root mean squares of QK-norm are sums over the group by
// shuffles.
//
// Other head dimensions and alignments: a warp takes a head, a lane pairs l, l + 32, ...
//
// Bytes: 4 * rows * (num_heads + 2 * num_kv_heads) * head_dim + 4 * rows * head_dim of angles,
// which stay in the caches: bound by memory. Ideal at 4.2 TB/s for 4096 rows of 32 + 2 * 8 heads of
// 128: 24 us. At decode it is bound by latency. Measured on an H200, 1, 8, 64, 256 rows in a
// graph: 1.1, 1.2, 2.2, 2.4 us (with QK-norm 1.7, 1.8, 3.1, 3.2); 4096, 8192 rows: 27.6 us (0.87 of
// the copy bandwidth), 52.1 us (0.92).
#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/rope/rope_cuda.h"
#include "kernels/vector_math/vector_math.h"

namespace baton::kernels {
namespace {

constexpr int kAngleThreads = 128;
constexpr int kThreads = 128;
constexpr int kHeadDimMax = 512;
// From so many rows on, one block a row fills the chip.
constexpr int64_t kManyRows = 512;

__global__ void __launch_bounds__(kAngleThreads) RopeAnglesKernel(const RopeAnglesCudaParams p) {
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kAngleThreads + threadIdx.x;
  if (index >= p.rows * p.half) return;
  const int64_t row = index / p.half;
  const int64_t i = index % p.half;
  const float angle = __fmul_rn(static_cast<float>(p.positions[row]), p.inverse_frequencies[i]);
  const SinCos sc = SinCosF64(static_cast<double>(angle));
  p.out[row * 2 * p.half + i] = sc.cos * p.scale;
  p.out[row * 2 * p.half + p.half + i] = sc.sin * p.scale;
}

// What a lane holds of a head: eight elements of each half.
struct HeadPart {
  Floats8 low;
  Floats8 high;
};

struct Group {
  int lane;       // Of the group.
  unsigned mask;  // The group's lanes in the warp.
  int size;
};

__device__ __forceinline__ float GroupSum(float x, const Group& group) {
  for (int step = group.size / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(group.mask, x, step);
  }
  return x;
}

__device__ __forceinline__ void NormaliseHead(const float* gamma, int half, float epsilon,
                                              const Group& group, bool active, HeadPart* x) {
  float sum = 0;
  if (active) {
    for (int j = 0; j < 8; ++j) sum = fmaf(x->low.v[j], x->low.v[j], sum);
    for (int j = 0; j < 8; ++j) sum = fmaf(x->high.v[j], x->high.v[j], sum);
  }
  const float mean = GroupSum(sum, group) / static_cast<float>(2 * half);
  if (!active) return;
  const float inverse = 1.0f / sqrtf(mean + epsilon);
  const Floats8 low = LoadFloats8(gamma + group.lane * 8);
  const Floats8 high = LoadFloats8(gamma + half + group.lane * 8);
  for (int j = 0; j < 8; ++j) x->low.v[j] = x->low.v[j] * inverse * low.v[j];
  for (int j = 0; j < 8; ++j) x->high.v[j] = x->high.v[j] * inverse * high.v[j];
}

// A pair (first half's element, second half's), rotated by an angle (cosine, sine).
__device__ __forceinline__ float2 RotatePair(float2 x, float2 angle) {
  return {fmaf(x.x, angle.x, -__fmul_rn(x.y, angle.y)),
          fmaf(x.y, angle.x, __fmul_rn(x.x, angle.y))};
}

__device__ __forceinline__ HeadPart Rotate(const HeadPart& x, const HeadPart& angles) {
  HeadPart y;
  for (int j = 0; j < 8; ++j) {
    const float2 pair = RotatePair({x.low.v[j], x.high.v[j]}, {angles.low.v[j], angles.high.v[j]});
    y.low.v[j] = pair.x;
    y.high.v[j] = pair.y;
  }
  return y;
}

// Offset, in elements, of the key at `slot` of one head.
__device__ __forceinline__ int64_t KeyOffset(const PagedKv16& kv, int64_t slot, int head) {
  const int64_t block = slot >> kv.block_tokens_log2;
  const int64_t token = slot & ((int64_t{1} << kv.block_tokens_log2) - 1);
  return block * kv.block_stride + kv.layer_offset + head * kv.head_stride + token * kv.head_dim;
}

template <HalfType kType>
__global__ void __launch_bounds__(kThreads)
    RopeKvWriteKernel(const RopeKvWriteCudaParams p, int group_log2, int heads_per_block) {
  using Element = typename HalfTraits<kType>::Element;
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  const int half = p.kv.head_dim / 2;
  const int64_t row = blockIdx.x;
  const int num_heads = p.num_heads + 2 * p.kv.num_kv_heads;
  const int size = 1 << group_log2;
  const int lane = static_cast<int>(threadIdx.x) % size;
  const int first_lane = static_cast<int>(threadIdx.x) % 32 / size * size;
  const Group group = {lane, (size == 32 ? ~0u : (1u << size) - 1) << first_lane, size};
  const bool active = lane * 8 < half;
  const int64_t slot = p.slots[row];
  HeadPart angles;
  if (active) {
    const float* row_angles = p.angles + row * 2 * half + lane * 8;
    angles = {LoadFloats8(row_angles), LoadFloats8(row_angles + half)};
  }
  const int begin = static_cast<int>(blockIdx.y) * heads_per_block;
  const int end = min(begin + heads_per_block, num_heads);
  const Element* in = static_cast<const Element*>(p.qkv) + row * num_heads * p.kv.head_dim;
  const int64_t pair = half;
  for (int h = begin + static_cast<int>(threadIdx.x) / size; h < end; h += kThreads / size) {
    uint4 low = {};
    uint4 high = {};
    if (active) {
      const Element* x = in + h * p.kv.head_dim + lane * 8;
      low = *reinterpret_cast<const uint4*>(x);
      high = *reinterpret_cast<const uint4*>(x + pair);
    }
    const int key_head = h - p.num_heads;
    const int value_head = key_head - p.kv.num_kv_heads;
    Element* out = static_cast<Element*>(p.kv.base);
    if (value_head >= 0) {
      out += KeyOffset(p.kv, slot, value_head) + p.kv.value_offset;
    } else {
      out = key_head >= 0 ? out + KeyOffset(p.kv, slot, key_head)
                          : static_cast<Element*>(p.q) + (row * p.num_heads + h) * p.kv.head_dim;
      HeadPart x = {WidenHalves8<kType>(low), WidenHalves8<kType>(high)};
      const float* gamma = key_head >= 0 ? p.k_gamma : p.q_gamma;
      if (gamma != nullptr) NormaliseHead(gamma, half, p.qk_epsilon, group, active, &x);
      x = Rotate(x, angles);
      low = NarrowHalves8<kType>(x.low);
      high = NarrowHalves8<kType>(x.high);
    }
    if (!active || (key_head >= 0 && slot < 0)) continue;
    *reinterpret_cast<uint4*>(out + lane * 8) = low;
    *reinterpret_cast<uint4*>(out + lane * 8 + pair) = high;
  }
}

// One head of any even dimension, by a warp.
template <HalfType kType>
__device__ __forceinline__ void WarpHead(const typename HalfTraits<kType>::Element* in,
                                         const float* angles, const float* gamma, float epsilon,
                                         int half, bool rotates,
                                         typename HalfTraits<kType>::Element* out) {
  using Traits = HalfTraits<kType>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float inverse = 1;
  if (gamma != nullptr) {
    float sum = 0;
    for (int i = lane; i < 2 * half; i += 32) {
      const float x = Traits::ToFloat(in[i]);
      sum = fmaf(x, x, sum);
    }
    sum = GroupSum(sum, {lane, ~0u, 32});
    inverse = 1.0f / sqrtf(sum / static_cast<float>(2 * half) + epsilon);
  }
  for (int i = lane; i < half; i += 32) {
    if (!rotates) {
      out[i] = in[i];
      out[i + half] = in[i + half];
      continue;
    }
    float2 x = {Traits::ToFloat(in[i]), Traits::ToFloat(in[i + half])};
    if (gamma != nullptr) x = {x.x * inverse * gamma[i], x.y * inverse * gamma[i + half]};
    const float2 y = RotatePair(x, {angles[i], angles[i + half]});
    out[i] = Traits::FromFloat(y.x);
    out[i + half] = Traits::FromFloat(y.y);
  }
}

template <HalfType kType>
__global__ void __launch_bounds__(kThreads) RopeKvWriteAnyKernel(const RopeKvWriteCudaParams p) {
  using Element = typename HalfTraits<kType>::Element;
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  const int64_t dim = p.kv.head_dim;
  const int64_t row = blockIdx.x;
  const int num_heads = p.num_heads + 2 * p.kv.num_kv_heads;
  const auto h = static_cast<int>((blockIdx.y * kThreads + threadIdx.x) / 32);
  if (h >= num_heads) return;
  const int key_head = h - p.num_heads;
  const int value_head = key_head - p.kv.num_kv_heads;
  const int64_t slot = p.slots[row];
  if (key_head >= 0 && slot < 0) return;
  Element* out = static_cast<Element*>(p.q) + (row * p.num_heads + h) * dim;
  if (key_head >= 0) {
    const int64_t offset = value_head >= 0 ? KeyOffset(p.kv, slot, value_head) + p.kv.value_offset
                                           : KeyOffset(p.kv, slot, key_head);
    out = static_cast<Element*>(p.kv.base) + offset;
  }
  const float* gamma = value_head >= 0 ? nullptr : key_head >= 0 ? p.k_gamma : p.q_gamma;
  WarpHead<kType>(static_cast<const Element*>(p.qkv) + (row * num_heads + h) * dim,
                  p.angles + row * dim, gamma, p.qk_epsilon, static_cast<int>(dim / 2),
                  value_head < 0, out);
}

// Whether all vectors of 16 bytes that RopeKvWriteKernel touches are aligned.
bool VectorsFit(const RopeKvWriteCudaParams& p) {
  const PagedKv16& kv = p.kv;
  return kv.head_dim % 16 == 0 && kv.head_dim <= kHeadDimMax && kv.block_stride % 8 == 0 &&
         kv.layer_offset % 8 == 0 && kv.head_stride % 8 == 0 && kv.value_offset % 8 == 0 &&
         IsAligned16(p.qkv) && IsAligned16(p.angles) && IsAligned16(p.q) && IsAligned16(kv.base) &&
         IsAligned16(p.q_gamma) && IsAligned16(p.k_gamma);
}

template <HalfType kType>
KernelStatus LaunchRopeKvWrite(const RopeKvWriteCudaParams& p, int num_heads, CudaStream stream,
                               LaunchOrder order) {
  const bool vectors = VectorsFit(p);
  int group_log2 = 0;
  while (8 << group_log2 < p.kv.head_dim / 2) ++group_log2;
  int heads_per_block = vectors ? kThreads >> group_log2 : kThreads / 32;
  if (vectors && p.rows >= kManyRows) heads_per_block = num_heads;
  const LaunchConfig config = {
      .grid = dim3(static_cast<unsigned>(p.rows),
                   static_cast<unsigned>((num_heads + heads_per_block - 1) / heads_per_block)),
      .block = dim3(kThreads),
      .stream = stream,
      .order = order};
  return vectors ? Launch(config, RopeKvWriteKernel<kType>, p, group_log2, heads_per_block)
                 : Launch(config, RopeKvWriteAnyKernel<kType>, p);
}

}  // namespace

KernelStatus RopeAnglesCuda(const RopeAnglesCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.rows < 0 || p.half < 0) return KernelStatus::kInvalidArgument;
  const int64_t blocks = (p.rows * p.half + kAngleThreads - 1) / kAngleThreads;
  if (blocks > INT32_MAX) return KernelStatus::kUnsupported;
  if (blocks == 0) return KernelStatus::kOk;
  if (p.positions == nullptr || p.inverse_frequencies == nullptr || p.out == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  return Launch({.grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(kAngleThreads),
                 .stream = stream,
                 .order = order},
                RopeAnglesKernel, p);
}

KernelStatus RopeKvWriteCuda(const RopeKvWriteCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.rows < 0 || p.num_heads < 0 || p.kv.num_kv_heads < 0 || p.kv.head_dim <= 0) {
    return KernelStatus::kInvalidArgument;
  }
  if (p.kv.head_dim % 2 != 0 || p.rows > INT32_MAX) return KernelStatus::kUnsupported;
  const int num_heads = p.num_heads + 2 * p.kv.num_kv_heads;
  if (p.rows == 0 || num_heads == 0) return KernelStatus::kOk;
  if (p.qkv == nullptr || p.angles == nullptr || p.slots == nullptr || p.q == nullptr ||
      p.kv.base == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  return p.kv.type == HalfType::kBF16
             ? LaunchRopeKvWrite<HalfType::kBF16>(p, num_heads, stream, order)
             : LaunchRopeKvWrite<HalfType::kF16>(p, num_heads, stream, order);
}

}  // namespace baton::kernels
