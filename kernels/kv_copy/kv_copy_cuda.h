// GatherBytes, ScatterBytes and KvChecksum of kv_copy.h on the GPU: scattered ranges of the KV pool
// into a contiguous staging buffer and back, the checksum of the contiguous bytes computed on the
// way. One pass, bound by memory: every byte is read once and written once.
//
// The checksum is an integer sum of per-block partial sums, so it does not depend on the order in
// which blocks run.
#ifndef BATON_KERNELS_KV_COPY_KV_COPY_CUDA_H_
#define BATON_KERNELS_KV_COPY_KV_COPY_CUDA_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

// A piece of the pool and where it lies in the staging buffer, in bytes. An array of these is
// contiguous in staging: staging_offset is the sum of the sizes before.
struct KvCopyRange {
  int64_t pool_offset = 0;
  int64_t bytes = 0;
  int64_t staging_offset = 0;  // Set by PlanKvCopy.
};

// On the host: sets staging_offset of ranges [num_ranges] and gives their total size. kUnsupported:
// an offset or a size is not a multiple of 16. kInvalidArgument: a negative offset or size, or an
// end beyond pool_bytes.
KernelStatus PlanKvCopy(KvCopyRange* ranges, int64_t num_ranges, int64_t pool_bytes,
                        int64_t* total_bytes);

struct KvCopyCudaParams {
  void* pool = nullptr;                 // Aligned to 16 bytes.
  void* staging = nullptr;              // [total_bytes], aligned to 16 bytes.
  const KvCopyRange* ranges = nullptr;  // [num_ranges] in device memory, as from PlanKvCopy.
  int32_t num_ranges = 0;
  int64_t total_bytes = 0;       // As from PlanKvCopy.
  uint64_t* checksum = nullptr;  // In device memory; null: not wanted. Overwritten.
};
// Pool to staging.
KernelStatus KvGatherCuda(const KvCopyCudaParams& p, CudaStream stream);
// Staging to pool; no two ranges overlap.
KernelStatus KvScatterCuda(const KvCopyCudaParams& p, CudaStream stream);
// *checksum = KvChecksum(data [bytes]). kUnsupported: not in multiples of 16 bytes.
KernelStatus KvChecksumCuda(const void* data, int64_t bytes, uint64_t* checksum, CudaStream stream);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_COPY_KV_COPY_CUDA_H_
