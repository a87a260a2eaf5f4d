// wgmma (sm_90a): D[64, N] += A[64, 16] B[16, N] by a warpgroup, asynchronously, A and B in shared
// memory, D in registers in float32. Four consecutive warps, the first a multiple of four, execute
// every call together.
//
// Order: WgmmaFence() before the first call and whenever other code wrote the accumulators; then
// any number of Wgmma<...>::Run; WgmmaCommit(); WgmmaWait<n>() until at most n groups are in
// flight. Only then may D be read or the shared memory be overwritten.
//
// Thread `lane` of warp `w` holds, for j < N / 8: d[4j], d[4j+1] = D[16w + lane/4][8j + 2(lane%4) +
// {0, 1}], and d[4j+2], d[4j+3] = the same columns eight rows below.
#ifndef BATON_KERNELS_PTX_WGMMA_CUH_
#define BATON_KERNELS_PTX_WGMMA_CUH_

#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/ptx/mbarrier.cuh"

namespace baton::kernels::ptx {

// Descriptor of an operand whose rows are 64 16-bit elements along k, 128 bytes apart, stored with
// the 128-byte swizzle (as the copy engine writes it); groups of eight rows are 1024 bytes apart
// and begin at a multiple of 1024. The next 16 along k are 32 bytes on: add 2 to the descriptor.
__device__ __forceinline__ uint64_t WgmmaDescriptorSwizzle128(const void* shared) {
  const uint64_t address = SharedAddress(shared);
  return ((address & 0x3FFFF) >> 4) | (uint64_t{1} << 16) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
inline constexpr uint64_t kWgmmaDescriptorStepK16 = 2;

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Wgmma<type, N>::Run(d, a, b, accumulate): D = A B + (accumulate ? D : 0), both operands K-major.
template <HalfType kType, int kN>
struct Wgmma;

template <>
struct Wgmma<HalfType::kBF16, 8> {
  static __device__ __forceinline__ void Run(float (&d)[4], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kF16, 8> {
  static __device__ __forceinline__ void Run(float (&d)[4], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
        "%0, %1, %2, %3"
        "}, %4, %5, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kBF16, 16> {
  static __device__ __forceinline__ void Run(float (&d)[8], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kF16, 16> {
  static __device__ __forceinline__ void Run(float (&d)[8], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kBF16, 32> {
  static __device__ __forceinline__ void Run(float (&d)[16], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kF16, 32> {
  static __device__ __forceinline__ void Run(float (&d)[16], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kBF16, 64> {
  static __device__ __forceinline__ void Run(float (&d)[32], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

template <>
struct Wgmma<HalfType::kF16, 64> {
  static __device__ __forceinline__ void Run(float (&d)[32], uint64_t a, uint64_t b,
                                             bool accumulate) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));
  }
};

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_WGMMA_CUH_
