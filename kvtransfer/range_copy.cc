#include "kvtransfer/range_copy.h"

#include <utility>

#include "common/base/log.h"
#include "kernels/kv_copy/kv_copy.h"

namespace baton::kvtransfer {

absl::StatusOr<uint64_t> GatherRanges(Device* device,
                                      absl::Span<const absl::Span<const std::byte>> sources,
                                      absl::Span<std::byte> staging) {
  if (device != nullptr) return device->KvGather(sources, staging);
  return kernels::GatherBytes(sources, staging);
}

absl::StatusOr<uint64_t> ScatterRanges(Device* device, absl::Span<const std::byte> staging,
                                       absl::Span<const absl::Span<std::byte>> destinations) {
  if (device != nullptr) return device->KvScatter(staging, destinations);
  return kernels::ScatterBytes(staging, destinations);
}

std::shared_ptr<std::byte> AllocateStaging(Device* device, StagingPlace place, uint64_t bytes) {
  if (device != nullptr) {
    auto memory = device->AllocateStaging(static_cast<int64_t>(bytes), place);
    if (!memory.ok() && place == StagingPlace::kDevice) {
      // A GPU reaches page-locked memory too, only slowly.
      LogWarning("staging slots of KV lie in memory of the host",
                 {{"reason", memory.status().message()}});
      memory = device->AllocateStaging(static_cast<int64_t>(bytes), StagingPlace::kHost);
    }
    if (memory.ok()) return *std::move(memory);
    LogWarning("staging slots of KV lie in ordinary memory",
               {{"reason", memory.status().message()}});
  }
  // Not value-initialised: pages come with their first use.
  std::shared_ptr<std::byte[]> array = std::make_shared_for_overwrite<std::byte[]>(bytes);
  return {array, array.get()};
}

}  // namespace baton::kvtransfer
