// Tensor maps for the copy engine, encoded on the host. For launchers; needs CUDA's headers.
#ifndef BATON_KERNELS_LAUNCH_TENSOR_MAP_H_
#define BATON_KERNELS_LAUNCH_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

// A row-major matrix of 16-bit elements, read in boxes of box_rows x box_cols.
struct TensorMap2d {
  const void* base = nullptr;  // [rows, cols], aligned to 16 bytes.
  HalfType type = HalfType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;  // Elements, a multiple of 8.
  int32_t box_rows = 0;    // At most 256.
  int32_t box_cols = 0;    // 64 with the swizzle: 128 bytes.
  bool swizzle_128 = true;
  // Bytes that the L2 fetches from memory when it misses: 0, 64, 128 or 256.
  int32_t l2_promotion_bytes = 128;
};

// A pure function of its argument once the driver's entry point is known; thread-safe, and legal
// during capture. ERRORS: kInvalidArgument when the driver refuses the matrix, kLaunchFailed when
// there is no driver.
KernelStatus EncodeTensorMap(const TensorMap2d& matrix, CUtensorMap* map);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_TENSOR_MAP_H_
