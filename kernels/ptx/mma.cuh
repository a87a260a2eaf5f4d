// mma.sync (sm_80 and later): D[16, 8] += A[16, 16] B[16, 8] by one warp, operands in registers,
// float32 accumulators. With g = lane / 4 and c = lane % 4, a lane holds, pairs in the low and high
// half:
//   a[0] = A[g][2c, 2c+1], a[1] = A[g+8][2c, 2c+1], a[2], a[3] = the same rows 8 columns on
//   b0 = B[2c, 2c+1][g], b1 = B[2c+8, 2c+9][g]
//   d[0], d[1] = D[g][2c, 2c+1], d[2], d[3] = D[g+8][2c, 2c+1]
#ifndef BATON_KERNELS_PTX_MMA_CUH_
#define BATON_KERNELS_PTX_MMA_CUH_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels::ptx {

template <HalfType kType>
__device__ __forceinline__ void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  if constexpr (kType == HalfType::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_MMA_CUH_
