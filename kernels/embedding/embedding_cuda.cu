// EmbedCuda: out[r, :] = table[id(r), :] as float32. GatherRowsCuda: out[i, :] = in[rows[i], :].
//
// Mapping: blockIdx.x is an output row, blockIdx.y a piece of it; a thread moves 16 bytes of the
// source (one element when a row's size or address does not allow that).
// Bytes: rows * k * (2 + 4), and 2 * num_rows * row_bytes: bound by memory, at decode by latency
// (two dependent loads: the index, the row).
// Measured on an H200, EmbedCuda of 1, 8, 64 rows of 4096 in a graph: 0.95, 1.0, 2.0 us; 8192
// rows 55.7 us (0.84 of the copy bandwidth). GatherRowsCuda, float32: 0.86, 0.96, 2.1, 82 us
// (0.76).
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/ptx/grid_dependency.cuh"

namespace baton::kernels {
namespace {

constexpr int kThreads = 128;

// The token id of a row, or -1 when the source names none.
__device__ __forceinline__ int64_t TokenOfRow(const EmbedCudaParams& p, int64_t row) {
  int32_t id = p.token_source[row];
  if (id < 0) {
    const int32_t sample = -1 - id;
    if (sample >= p.num_last_samples) return -1;
    id = p.last_samples[sample];
  }
  return id < p.n ? id : -1;
}

template <HalfType kType, bool kVector>
__global__ void __launch_bounds__(kThreads) EmbedKernel(const EmbedCudaParams p) {
  using Traits = HalfTraits<kType>;
  using Element = typename Traits::Element;
  constexpr int kWidth = kVector ? 8 : 1;
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  const int64_t row = blockIdx.x;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (column >= p.k) return;
  const int64_t id = TokenOfRow(p, row);
  const Element* in = static_cast<const Element*>(p.table) + id * p.k + column;
  float* out = p.out + row * p.k + column;
  const float nan = __int_as_float(0x7FFFFFFF);
  if constexpr (kVector) {
    Floats8 x = {{nan, nan, nan, nan, nan, nan, nan, nan}};
    if (id >= 0) x = LoadHalves8<kType>(in);
    StoreFloats8(x, out);
  } else {
    *out = id >= 0 ? Traits::ToFloat(*in) : nan;
  }
}

template <typename Piece>
__global__ void __launch_bounds__(kThreads) GatherRowsKernel(const GatherRowsCudaParams p) {
  ptx::DependencyTrigger();
  ptx::DependencyWait();
  const int64_t pieces = p.row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int64_t piece = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (piece >= pieces) return;
  const int32_t row = p.rows[blockIdx.x];
  Piece value;
  memset(&value, 0xFF, sizeof(value));
  if (row >= 0 && row < p.in_rows) value = static_cast<const Piece*>(p.in)[row * pieces + piece];
  static_cast<Piece*>(p.out)[static_cast<int64_t>(blockIdx.x) * pieces + piece] = value;
}

// One block of y for every kThreads of `threads`.
LaunchConfig RowsConfig(int64_t rows, int64_t threads, CudaStream stream, LaunchOrder order) {
  return {.grid = dim3(static_cast<unsigned>(rows),
                       static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
          .block = dim3(kThreads),
          .stream = stream,
          .order = order};
}

template <HalfType kType>
KernelStatus LaunchEmbed(const EmbedCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.k % 8 == 0 && IsAligned16(p.table) && IsAligned16(p.out)) {
    return Launch(RowsConfig(p.rows, p.k / 8, stream, order), EmbedKernel<kType, true>, p);
  }
  return Launch(RowsConfig(p.rows, p.k, stream, order), EmbedKernel<kType, false>, p);
}

// blockIdx.y goes up to 65535.
constexpr int64_t kThreadsOfRowMax = int64_t{65535} * kThreads;

}  // namespace

KernelStatus EmbedCuda(const EmbedCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.rows < 0 || p.k < 0 || p.n < 0 || p.num_last_samples < 0) {
    return KernelStatus::kInvalidArgument;
  }
  if (p.rows > INT32_MAX || p.k > kThreadsOfRowMax) return KernelStatus::kUnsupported;
  if (p.rows == 0 || p.k == 0) return KernelStatus::kOk;
  if (p.token_source == nullptr || p.table == nullptr || p.out == nullptr ||
      (p.num_last_samples > 0 && p.last_samples == nullptr)) {
    return KernelStatus::kInvalidArgument;
  }
  return p.type == HalfType::kBF16 ? LaunchEmbed<HalfType::kBF16>(p, stream, order)
                                   : LaunchEmbed<HalfType::kF16>(p, stream, order);
}

KernelStatus GatherRowsCuda(const GatherRowsCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.num_rows < 0 || p.in_rows < 0 || p.row_bytes < 0 || p.row_bytes % 2 != 0) {
    return KernelStatus::kInvalidArgument;
  }
  if (p.num_rows > INT32_MAX || p.row_bytes / 2 > kThreadsOfRowMax) {
    return KernelStatus::kUnsupported;
  }
  if (p.num_rows == 0 || p.row_bytes == 0) return KernelStatus::kOk;
  if (p.in == nullptr || p.rows == nullptr || p.out == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  if (p.row_bytes % 16 == 0 && IsAligned16(p.in) && IsAligned16(p.out)) {
    return Launch(RowsConfig(p.num_rows, p.row_bytes / 16, stream, order), GatherRowsKernel<uint4>,
                  p);
  }
  return Launch(RowsConfig(p.num_rows, p.row_bytes / 2, stream, order), GatherRowsKernel<uint16_t>,
                p);
}

}  // namespace baton::kernels
