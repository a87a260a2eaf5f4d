// ldmatrix and movmatrix (sm_75 and later): 8x8 matrices of 16-bit elements between shared memory
// and the registers of one warp. In registers a lane holds row lane / 4, columns 2 (lane % 4) and
// the next.
#ifndef BATON_KERNELS_PTX_LDMATRIX_CUH_
#define BATON_KERNELS_PTX_LDMATRIX_CUH_

#include <cstdint>

namespace baton::kernels::ptx {

// Four matrices; lane i names the address in shared memory of row i % 8 (16 bytes) of matrix i / 8.
__device__ __forceinline__ void LoadMatrixX4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void LoadMatrixX4Transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// One matrix, transposed within the registers of the warp.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t x) {
  uint32_t y = 0;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_LDMATRIX_CUH_
