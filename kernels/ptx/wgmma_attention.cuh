// wgmma (sm_90a) as attention needs it: scores = Q K^T with both operands in shared memory, wide;
// and out += weights V with the weights in registers and V stored as it lies in the pool (keys by
// rows), which wgmma calls a transposed B. wgmma.cuh has the order of calls and the layout of D.
#ifndef BATON_KERNELS_PTX_WGMMA_ATTENTION_CUH_
#define BATON_KERNELS_PTX_WGMMA_ATTENTION_CUH_

#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/ptx/wgmma.cuh"

namespace baton::kernels::ptx {

// Descriptor of B[k, n] stored as rows of k with n contiguous, in columns of 64 elements (128
// bytes, 128-byte swizzle): eight rows are 1024 bytes, the next 64 columns are `column_bytes` on.
// The next 16 along k are 2048 bytes on: add 128 to the descriptor.
__device__ __forceinline__ uint64_t WgmmaDescriptorTransposed(const void* shared,
                                                              uint32_t column_bytes) {
  const uint64_t address = SharedAddress(shared);
  return ((address & 0x3FFFF) >> 4) | (uint64_t{column_bytes >> 4} << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}
inline constexpr uint64_t kWgmmaDescriptorStepTransposed = 128;

// Keeps the compiler from moving uses of `r` over the waits and fences around asynchronous calls.
template <int kCount>
__device__ __forceinline__ void PinRegisters(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void PinRegisters(uint32_t (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// WgmmaScores<type, N>::Run(d, a, b, accumulate): D[64, N] = A B + (accumulate ? D : 0), A and B
// K-major in shared memory.
template <HalfType kType, int kN>
struct WgmmaScores;
// WgmmaValues<type, N>::Run(d, a, b, accumulate): the same with A in registers, in the layout of D
// rounded and packed: a[0], a[1] = rows lane / 4 and + 8, columns 2 (lane % 4) and the next; a[2],
// a[3] = 8 columns on. B transposed.
template <HalfType kType, int kN>
struct WgmmaValues;

// The operand lists, 32 registers at a time.
#define BATON_WGMMA_D0                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_WGMMA_D32                                                              \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_WGMMA_D64                                                              \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BATON_WGMMA_D96                                                                          \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define BATON_WGMMA_INOUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BATON_WGMMA_INOUT16(d, i)                                                       \
  BATON_WGMMA_INOUT4(d, i), BATON_WGMMA_INOUT4(d, i + 4), BATON_WGMMA_INOUT4(d, i + 8), \
      BATON_WGMMA_INOUT4(d, i + 12)
#define BATON_WGMMA_INOUT32(d, i) BATON_WGMMA_INOUT16(d, i), BATON_WGMMA_INOUT16(d, i + 16)
#define BATON_WGMMA_INOUT64(d, i) BATON_WGMMA_INOUT32(d, i), BATON_WGMMA_INOUT32(d, i + 32)
#define BATON_WGMMA_INOUT128(d, i) BATON_WGMMA_INOUT64(d, i), BATON_WGMMA_INOUT64(d, i + 64)

#define BATON_WGMMA_SCORES(TYPE, SUFFIX, N, HALF_N, D, A, B, P)                              \
  template <>                                                                                \
  struct WgmmaScores<TYPE, N> {                                                              \
    static __device__ __forceinline__ void Run(float (&d)[HALF_N], uint64_t a, uint64_t b,   \
                                               bool accumulate) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                     \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." SUFFIX "." SUFFIX \
                   " {" D "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"                             \
                   : BATON_WGMMA_INOUT##HALF_N(d, 0)                                         \
                   : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));                 \
    }                                                                                        \
  };
#define BATON_WGMMA_VALUES(TYPE, SUFFIX, N, HALF_N, D, A, B, P)                                   \
  template <>                                                                                     \
  struct WgmmaValues<TYPE, N> {                                                                   \
    static __device__ __forceinline__ void Run(float (&d)[HALF_N], const uint32_t* a, uint64_t b, \
                                               bool accumulate) {                                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                          \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." SUFFIX "." SUFFIX      \
                   " {" D "}, {" A "}, " B ", p, 1, 1, 1;\n}\n"                                   \
                   : BATON_WGMMA_INOUT##HALF_N(d, 0)                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                          \
                     "r"(static_cast<int32_t>(accumulate)));                                      \
    }                                                                                             \
  };

BATON_WGMMA_SCORES(HalfType::kBF16, "bf16", 64, 32, BATON_WGMMA_D0, "%32", "%33", "%34")
BATON_WGMMA_SCORES(HalfType::kBF16, "bf16", 128, 64, BATON_WGMMA_D0 ", " BATON_WGMMA_D32, "%64",
                   "%65", "%66")
BATON_WGMMA_VALUES(HalfType::kBF16, "bf16", 64, 32, BATON_WGMMA_D0, "%32, %33, %34, %35", "%36",
                   "%37")
BATON_WGMMA_VALUES(HalfType::kBF16, "bf16", 128, 64, BATON_WGMMA_D0 ", " BATON_WGMMA_D32,
                   "%64, %65, %66, %67", "%68", "%69")
BATON_WGMMA_VALUES(HalfType::kBF16, "bf16", 256, 128,
                   BATON_WGMMA_D0 ", " BATON_WGMMA_D32 ", " BATON_WGMMA_D64 ", " BATON_WGMMA_D96,
                   "%128, %129, %130, %131", "%132", "%133")
BATON_WGMMA_SCORES(HalfType::kF16, "f16", 64, 32, BATON_WGMMA_D0, "%32", "%33", "%34")
BATON_WGMMA_SCORES(HalfType::kF16, "f16", 128, 64, BATON_WGMMA_D0 ", " BATON_WGMMA_D32, "%64",
                   "%65", "%66")
BATON_WGMMA_VALUES(HalfType::kF16, "f16", 64, 32, BATON_WGMMA_D0, "%32, %33, %34, %35", "%36",
                   "%37")
BATON_WGMMA_VALUES(HalfType::kF16, "f16", 128, 64, BATON_WGMMA_D0 ", " BATON_WGMMA_D32,
                   "%64, %65, %66, %67", "%68", "%69")
BATON_WGMMA_VALUES(HalfType::kF16, "f16", 256, 128,
                   BATON_WGMMA_D0 ", " BATON_WGMMA_D32 ", " BATON_WGMMA_D64 ", " BATON_WGMMA_D96,
                   "%128, %129, %130, %131", "%132", "%133")

#undef BATON_WGMMA_D0
#undef BATON_WGMMA_D32
#undef BATON_WGMMA_D64
#undef BATON_WGMMA_D96
#undef BATON_WGMMA_INOUT4
#undef BATON_WGMMA_INOUT16
#undef BATON_WGMMA_INOUT32
#undef BATON_WGMMA_INOUT64
#undef BATON_WGMMA_INOUT128
#undef BATON_WGMMA_SCORES
#undef BATON_WGMMA_VALUES

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_WGMMA_ATTENTION_CUH_
