// Between staging slots and the ranges of KV pools: memory of the host, or of a device.
// Thread-safe.
#ifndef BATON_KVTRANSFER_RANGE_COPY_H_
#define BATON_KVTRANSFER_RANGE_COPY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "device/device.h"

namespace baton::kvtransfer {

// Concatenates `sources` into `staging`, or cuts `staging` into `destinations`; returns the
// checksum of the contiguous bytes (kernels/kv_copy/kv_copy.h). Blocks. `device`: whose memory the
// ranges lie in; null: the host's. ERRORS: of the device.
absl::StatusOr<uint64_t> GatherRanges(Device* device,
                                      absl::Span<const absl::Span<const std::byte>> sources,
                                      absl::Span<std::byte> staging);
absl::StatusOr<uint64_t> ScatterRanges(Device* device, absl::Span<const std::byte> staging,
                                       absl::Span<const absl::Span<std::byte>> destinations);

// Memory for staging slots at `place`; with a warning, page-locked memory when the device has none,
// and ordinary memory when there is none of that either.
std::shared_ptr<std::byte> AllocateStaging(Device* device, StagingPlace place, uint64_t bytes);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_RANGE_COPY_H_
