// The staging slots of a sender or receiver: the only memory that wires read or write. A slot is
// free, in use, or quarantined (its wire end was aborted and has not proved quiescence yet).
//
// Invariant: free + in use + quarantined == num_slots. A quarantined slot becomes free by Release
// only, which its holder calls once the wire end is quiescent.
// Thread rule: owned by the core thread of its sender or receiver.
#ifndef BATON_KVTRANSFER_STAGING_POOL_H_
#define BATON_KVTRANSFER_STAGING_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/base/strong_id.h"

namespace baton::kvtransfer {

using StagingSlotId = StrongId<struct StagingSlotIdTag, uint32_t>;

class StagingPool {
 public:
  // With `poison`, free slots hold a pattern that Acquire checks: a write into a free slot ends the
  // process. For tests; it costs a pass over the slot.
  // `memory` holds num_slots slots.
  StagingPool(uint32_t num_slots, uint64_t slot_bytes, bool poison,
              std::shared_ptr<std::byte> memory);
  ~StagingPool();  // REQUIRES: all slots free.

  // nullopt when no slot is free.
  std::optional<StagingSlotId> Acquire();
  void Quarantine(StagingSlotId slot);  // REQUIRES: in use.
  void Release(StagingSlotId slot);     // REQUIRES: in use or quarantined.
  absl::Span<std::byte> bytes(StagingSlotId slot);

  uint32_t num_slots() const { return static_cast<uint32_t>(states_.size()); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_quarantined() const { return num_quarantined_; }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  enum class State : uint8_t { kFree, kInUse, kQuarantined };

  const uint64_t slot_bytes_;
  const bool poison_;
  const std::shared_ptr<std::byte> memory_;
  std::vector<State> states_;
  std::vector<StagingSlotId> free_;
  uint32_t num_quarantined_ = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_STAGING_POOL_H_
