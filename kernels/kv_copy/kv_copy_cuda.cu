// Gather: staging[s.staging_offset + b] = pool[s.pool_offset + b] for every range s and b <
// s.bytes; scatter the other way; both add up KvChecksumMix(word i, i) over the 8-byte words of
// staging.
//
// Mapping: staging is cut into chunks of kChunkBytes, one block each, whatever the sizes of the
// ranges. A block finds the range of its first byte by a search and walks on from there; a thread
// has kUnroll loads of 16 bytes in flight. Partial sums are added up over the block in
// registers and shared memory, then with one 64-bit integer atomic, which commutes.
//
// Bytes: 2 * total (the checksum alone: total), each touched once (marking loads and stores as
// streaming measured 5 to 14 % slower); about 15 integer instructions an 8-byte word, a third of
// what the chip can do at full memory speed: bound by memory. Ideal at 4.26 TB/s for 134 MB: 63 us.
// Measured on an H200, gather and scatter with checksum: 70.1 and 70.3 us in pieces of 8 MiB
// (0.90), 79.3 and 81.6 in pieces of 32 KiB when each block still searched its range by
// halving; 68.9 without checksum; cudaMemcpyAsync 64.6; the checksum alone 36.5 (0.86). Chunks of
// 16 KiB and 32 KiB and 2, 4 or 8 loads in flight are within 3 % of each other, blocks of 1024
// threads 20 % slower.

#include "kernels/kv_copy/kv_checksum_mix.h"
#include "kernels/kv_copy/kv_copy_cuda.h"
#include "kernels/kv_copy/kv_copy_range.h"
#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/ptx/grid_dependency.cuh"

namespace baton::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr int64_t kVectorBytes = 16;
constexpr int64_t kChunkBytes = 2 * kUnroll * kThreads * kVectorBytes;

enum class CopyKind { kGather, kScatter, kChecksumOnly };

__device__ __forceinline__ uint64_t MixVector(const uint4& v, int64_t staging_byte) {
  const auto word = static_cast<uint64_t>(staging_byte) / 8;
  return KvChecksumMix(v.x | (static_cast<uint64_t>(v.y) << 32), word) +
         KvChecksumMix(v.z | (static_cast<uint64_t>(v.w) << 32), word + 1);
}

// Copies bytes [begin, end) of staging, which lie in one range at pool + pool_shift + begin.
template <CopyKind kKind>
__device__ __forceinline__ uint64_t CopyPiece(const KvCopyCudaParams& p, int64_t pool_shift,
                                              int64_t begin, int64_t end) {
  char* pool = static_cast<char*>(p.pool) + pool_shift;
  char* staging = static_cast<char*>(p.staging);
  const char* from = kKind == CopyKind::kGather ? pool : staging;
  char* to = kKind == CopyKind::kGather ? staging : pool;
  uint64_t sum = 0;
  constexpr int64_t kStep = kThreads * kVectorBytes;
  for (int64_t at = begin + threadIdx.x * kVectorBytes; at < end; at += kUnroll * kStep) {
    uint4 v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (at + i * kStep < end) {
        v[i] = *reinterpret_cast<const uint4*>(from + at + i * kStep);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (at + i * kStep >= end) continue;
      if constexpr (kKind != CopyKind::kChecksumOnly) {
        *reinterpret_cast<uint4*>(to + at + i * kStep) = v[i];
      }
      if (p.checksum != nullptr) sum += MixVector(v[i], at + i * kStep);
    }
  }
  return sum;
}

__device__ __forceinline__ void AddToChecksum(uint64_t sum, uint64_t* checksum) {
  __shared__ uint64_t warp_sums[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += warp_sums[w];
  atomicAdd(reinterpret_cast<unsigned long long*>(checksum), static_cast<unsigned long long>(sum));
}

template <CopyKind kKind>
__global__ void __launch_bounds__(kThreads) KvCopyKernel(const KvCopyCudaParams p) {
  ptx::DependencyWait();
  int64_t at = static_cast<int64_t>(blockIdx.x) * kChunkBytes;
  const int64_t end = min(at + kChunkBytes, p.total_bytes);
  uint64_t sum = 0;
  if constexpr (kKind == CopyKind::kChecksumOnly) {
    sum = CopyPiece<kKind>(p, 0, at, end);
  } else if (at < end) {
    int32_t r = KvCopyRangeOfByte(p.ranges, p.num_ranges, p.total_bytes, at);
    for (; at < end; ++r) {
      const KvCopyRange range = p.ranges[r];
      const int64_t piece_end = min(end, range.staging_offset + range.bytes);
      sum += CopyPiece<kKind>(p, range.pool_offset - range.staging_offset, at, piece_end);
      at = piece_end;
    }
  }
  if (p.checksum == nullptr) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    sum += KvChecksumMix(static_cast<uint64_t>(p.total_bytes), kKvChecksumLengthIndex);
  }
  AddToChecksum(sum, p.checksum);
}

template <CopyKind kKind>
KernelStatus LaunchCopy(const KvCopyCudaParams& p, CudaStream stream) {
  if (p.total_bytes < 0 || p.num_ranges < 0) return KernelStatus::kInvalidArgument;
  if (p.total_bytes % kVectorBytes != 0) return KernelStatus::kUnsupported;
  if (!IsAligned16(p.staging) || !IsAligned16(p.pool)) return KernelStatus::kUnsupported;
  const int64_t chunks = (p.total_bytes + kChunkBytes - 1) / kChunkBytes;
  if (chunks > INT32_MAX) return KernelStatus::kUnsupported;
  const bool copies = kKind != CopyKind::kChecksumOnly;
  if (chunks > 0 && (p.staging == nullptr ||
                     (copies && (p.pool == nullptr || p.ranges == nullptr || p.num_ranges == 0)))) {
    return KernelStatus::kInvalidArgument;
  }
  if (p.checksum != nullptr) {
    if (cudaMemsetAsync(p.checksum, 0, sizeof(uint64_t), stream) != cudaSuccess) {
      return KernelStatus::kLaunchFailed;
    }
  } else if (chunks == 0) {
    return KernelStatus::kOk;
  }
  return Launch({.grid = dim3(static_cast<unsigned>(chunks > 0 ? chunks : 1)),
                 .block = dim3(kThreads),
                 .stream = stream},
                KvCopyKernel<kKind>, p);
}

}  // namespace

KernelStatus KvGatherCuda(const KvCopyCudaParams& p, CudaStream stream) {
  return LaunchCopy<CopyKind::kGather>(p, stream);
}
KernelStatus KvScatterCuda(const KvCopyCudaParams& p, CudaStream stream) {
  return LaunchCopy<CopyKind::kScatter>(p, stream);
}
KernelStatus KvChecksumCuda(const void* data, int64_t bytes, uint64_t* checksum,
                            CudaStream stream) {
  if (checksum == nullptr) return KernelStatus::kInvalidArgument;
  KvCopyCudaParams p;
  p.staging = const_cast<void*>(data);  // Only read: kChecksumOnly writes nothing.
  p.total_bytes = bytes;
  p.checksum = checksum;
  return LaunchCopy<CopyKind::kChecksumOnly>(p, stream);
}

}  // namespace baton::kernels
