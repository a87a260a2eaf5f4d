#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/prefill_attention/prefill_attention_cuda.h"

namespace baton::kernels {
namespace {

static_assert(sizeof(KvTensorMap) == sizeof(CUtensorMap));
static_assert(alignof(KvTensorMap) >= alignof(CUtensorMap));

// By way of the runtime, so that nothing links the driver library.
PFN_cuTensorMapEncodeTiled_v12000 EncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

KernelStatus MakeKvTensorMap(const PagedKv16& kv, KvTensorMap* map) {
  if (kv.base == nullptr || kv.num_blocks <= 0 || kv.block_stride <= 0 || map == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  if (kv.head_dim <= 0 || kv.head_dim % 64 != 0 || kv.block_tokens_log2 < 4 ||
      kv.block_stride % kv.head_dim != 0) {
    return KernelStatus::kUnsupported;
  }
  const int64_t num_rows = kv.num_blocks * (kv.block_stride / kv.head_dim);
  if (num_rows >= int64_t{1} << 31) return KernelStatus::kUnsupported;
  const PFN_cuTensorMapEncodeTiled_v12000 encode = EncodeTiled();
  if (encode == nullptr) return KernelStatus::kLaunchFailed;

  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(kv.head_dim),
                               static_cast<cuuint64_t>(num_rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(kv.head_dim) * 2};
  const cuuint32_t box[2] = {64, std::min<cuuint32_t>(64, 1u << kv.block_tokens_log2)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded,
             kv.type == HalfType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             2, kv.base, sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) return KernelStatus::kInvalidArgument;
  std::memcpy(map->opaque, &encoded, sizeof(encoded));
  return KernelStatus::kOk;
}

}  // namespace baton::kernels
