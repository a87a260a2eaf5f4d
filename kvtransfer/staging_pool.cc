#include "kvtransfer/staging_pool.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::kvtransfer {
namespace {

constexpr std::byte kPoison{0xDB};

}  // namespace

StagingPool::StagingPool(uint32_t num_slots, uint64_t slot_bytes, bool poison,
                         std::shared_ptr<std::byte> memory)
    : slot_bytes_(slot_bytes),
      poison_(poison),
      memory_(std::move(memory)),
      states_(num_slots, State::kFree) {
  CHECK_GT(num_slots, 0u);
  CHECK_GT(slot_bytes, 0u);
  for (uint32_t i = num_slots; i > 0; --i) free_.push_back(StagingSlotId(i - 1));
  if (poison_) std::fill_n(memory_.get(), num_slots * slot_bytes, kPoison);
}

StagingPool::~StagingPool() { CHECK_EQ(free_.size(), states_.size()); }

std::optional<StagingSlotId> StagingPool::Acquire() {
  if (free_.empty()) return std::nullopt;
  const StagingSlotId slot = free_.back();
  free_.pop_back();
  states_[slot.value] = State::kInUse;
  if (poison_) {
    const absl::Span<std::byte> memory = bytes(slot);
    CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kPoison; }))
        << "somebody wrote into free staging slot " << slot;
  }
  return slot;
}

void StagingPool::Quarantine(StagingSlotId slot) {
  CHECK(states_[slot.value] == State::kInUse) << "slot " << slot;
  states_[slot.value] = State::kQuarantined;
  ++num_quarantined_;
}

void StagingPool::Release(StagingSlotId slot) {
  CHECK(states_[slot.value] != State::kFree) << "slot " << slot << " released twice";
  if (states_[slot.value] == State::kQuarantined) --num_quarantined_;
  states_[slot.value] = State::kFree;
  if (poison_) {
    const absl::Span<std::byte> memory = bytes(slot);
    std::fill(memory.begin(), memory.end(), kPoison);
  }
  free_.push_back(slot);
}

absl::Span<std::byte> StagingPool::bytes(StagingSlotId slot) {
  return absl::MakeSpan(memory_.get() + slot.value * slot_bytes_, slot_bytes_);
}

}  // namespace baton::kvtransfer
