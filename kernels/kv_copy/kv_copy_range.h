// Which range of a copy holds a byte of the staging buffer: shared by the kernel and its unit test.
#ifndef BATON_KERNELS_KV_COPY_KV_COPY_RANGE_H_
#define BATON_KERNELS_KV_COPY_KV_COPY_RANGE_H_

#include <cstdint>

#include "kernels/kv_copy/kv_copy_cuda.h"
#include "kernels/launch/host_device.h"

namespace baton::kernels {

// The last of ranges [num_ranges] that starts at or before `staging_byte`; an empty range never is,
// since the next one starts there too. Ranges of one size, the usual case, are found at the first
// guess: the loads of a search depend on each other, and a block copies for hardly longer than a
// search would take. REQUIRES: 0 <= staging_byte < total_bytes.
BATON_HOST_DEVICE inline int32_t KvCopyRangeOfByte(const KvCopyRange* ranges, int32_t num_ranges,
                                                   int64_t total_bytes, int64_t staging_byte) {
  int32_t low = 0;
  int32_t high = num_ranges;
  auto middle = static_cast<int32_t>(static_cast<double>(staging_byte) * num_ranges /
                                     static_cast<double>(total_bytes));
  if (middle >= num_ranges) middle = num_ranges - 1;
  while (high - low > 1) {
    const KvCopyRange range = ranges[middle];
    if (range.staging_offset <= staging_byte) {
      low = middle;
      if (staging_byte < range.staging_offset + range.bytes) break;
    } else {
      high = middle;
    }
    middle = low + (high - low) / 2;
  }
  return low;
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_KV_COPY_KV_COPY_RANGE_H_
