// wgmma (sm_90a) with a wide N, both operands K-major in shared memory: what large products are
// made of. wgmma.cuh has the order of calls, the descriptors and the layout of D.
#ifndef BATON_KERNELS_PTX_WGMMA_WIDE_CUH_
#define BATON_KERNELS_PTX_WGMMA_WIDE_CUH_

#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/ptx/wgmma.cuh"

namespace baton::kernels::ptx {

// WgmmaWide<type, N>::Run(d, a, b, accumulate): D[64, N] = A B + (accumulate ? D : 0).
template <HalfType kType, int kN>
struct WgmmaWide;

// The operand lists.
#define BATON_WGMMA_D64                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_WGMMA_D96                                                                \
  BATON_WGMMA_D64                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define BATON_WGMMA_D112 \
  BATON_WGMMA_D96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define BATON_WGMMA_D128                                                                   \
  BATON_WGMMA_D112                                                                         \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"
#define BATON_WGMMA_INOUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BATON_WGMMA_INOUT16(d, i)                                                       \
  BATON_WGMMA_INOUT4(d, i), BATON_WGMMA_INOUT4(d, i + 4), BATON_WGMMA_INOUT4(d, i + 8), \
      BATON_WGMMA_INOUT4(d, i + 12)
#define BATON_WGMMA_INOUT64(d)                                                       \
  BATON_WGMMA_INOUT16(d, 0), BATON_WGMMA_INOUT16(d, 16), BATON_WGMMA_INOUT16(d, 32), \
      BATON_WGMMA_INOUT16(d, 48)
#define BATON_WGMMA_INOUT96(d) \
  BATON_WGMMA_INOUT64(d), BATON_WGMMA_INOUT16(d, 64), BATON_WGMMA_INOUT16(d, 80)
#define BATON_WGMMA_INOUT112(d) BATON_WGMMA_INOUT96(d), BATON_WGMMA_INOUT16(d, 96)
#define BATON_WGMMA_INOUT128(d) BATON_WGMMA_INOUT112(d), BATON_WGMMA_INOUT16(d, 112)

#define BATON_WGMMA_WIDE(TYPE, SUFFIX, N, HALF_N, A, B, P)                                   \
  template <>                                                                                \
  struct WgmmaWide<TYPE, N> {                                                                \
    static __device__ __forceinline__ void Run(float (&d)[HALF_N], uint64_t a, uint64_t b,   \
                                               bool accumulate) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P                                     \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." SUFFIX "." SUFFIX \
                   " {" BATON_WGMMA_D##HALF_N "}, " A ", " B ", p, 1, 1, 0, 0;\n}\n"         \
                   : BATON_WGMMA_INOUT##HALF_N(d)                                            \
                   : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));                 \
    }                                                                                        \
  };

BATON_WGMMA_WIDE(HalfType::kBF16, "bf16", 128, 64, "%64", "%65", "%66")
BATON_WGMMA_WIDE(HalfType::kBF16, "bf16", 192, 96, "%96", "%97", "%98")
BATON_WGMMA_WIDE(HalfType::kBF16, "bf16", 224, 112, "%112", "%113", "%114")
BATON_WGMMA_WIDE(HalfType::kBF16, "bf16", 256, 128, "%128", "%129", "%130")
BATON_WGMMA_WIDE(HalfType::kF16, "f16", 128, 64, "%64", "%65", "%66")
BATON_WGMMA_WIDE(HalfType::kF16, "f16", 192, 96, "%96", "%97", "%98")
BATON_WGMMA_WIDE(HalfType::kF16, "f16", 224, 112, "%112", "%113", "%114")
BATON_WGMMA_WIDE(HalfType::kF16, "f16", 256, 128, "%128", "%129", "%130")

#undef BATON_WGMMA_D64
#undef BATON_WGMMA_D96
#undef BATON_WGMMA_D112
#undef BATON_WGMMA_D128
#undef BATON_WGMMA_INOUT4
#undef BATON_WGMMA_INOUT16
#undef BATON_WGMMA_INOUT64
#undef BATON_WGMMA_INOUT96
#undef BATON_WGMMA_INOUT112
#undef BATON_WGMMA_INOUT128
#undef BATON_WGMMA_WIDE

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_WGMMA_WIDE_CUH_
