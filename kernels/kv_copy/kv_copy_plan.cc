#include "kernels/kv_copy/kv_copy_cuda.h"

namespace baton::kernels {

KernelStatus PlanKvCopy(KvCopyRange* ranges, int64_t num_ranges, int64_t pool_bytes,
                        int64_t* total_bytes) {
  int64_t total = 0;
  for (int64_t i = 0; i < num_ranges; ++i) {
    KvCopyRange& range = ranges[i];
    if (range.pool_offset < 0 || range.bytes < 0 || range.pool_offset > pool_bytes ||
        range.bytes > pool_bytes - range.pool_offset) {
      return KernelStatus::kInvalidArgument;
    }
    if (range.pool_offset % 16 != 0 || range.bytes % 16 != 0) return KernelStatus::kUnsupported;
    range.staging_offset = total;
    total += range.bytes;
  }
  *total_bytes = total;
  return KernelStatus::kOk;
}

}  // namespace baton::kernels
