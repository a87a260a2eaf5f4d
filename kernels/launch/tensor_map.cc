#include "kernels/launch/tensor_map.h"

#include <cuda_runtime_api.h>

namespace baton::kernels {
namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

// Asked of the runtime, so that nothing links to the driver library.
EncodeFunction FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeFunction>(function);
}

CUtensorMapL2promotion Promotion(int32_t bytes) {
  switch (bytes) {
    case 64:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
    case 128:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    case 256:
      return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    default:
      return CU_TENSOR_MAP_L2_PROMOTION_NONE;
  }
}

}  // namespace

KernelStatus EncodeTensorMap(const TensorMap2d& matrix, CUtensorMap* map) {
  static const EncodeFunction encode = FindEncode();
  if (encode == nullptr) return KernelStatus::kLaunchFailed;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(matrix.cols),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(matrix.row_stride) * 2};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(matrix.box_cols),
                             static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t element_strides[2] = {1, 1};
  const CUresult result =
      encode(map,
             matrix.type == HalfType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             2, const_cast<void*>(matrix.base), dims, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             matrix.swizzle_128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             Promotion(matrix.l2_promotion_bytes), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? KernelStatus::kOk : KernelStatus::kInvalidArgument;
}

}  // namespace baton::kernels
