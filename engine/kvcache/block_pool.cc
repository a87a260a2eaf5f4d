#include "engine/kvcache/block_pool.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

size_t Index(BlockState state) { return static_cast<size_t>(state); }
size_t Index(BlockHolder holder) { return static_cast<size_t>(holder); }

const char* HolderName(BlockHolder holder) {
  switch (holder) {
    case BlockHolder::kSequence:
      return "sequence holder";
    case BlockHolder::kCache:
      return "cache holder";
    case BlockHolder::kLease:
      return "lease";
  }
  return "unknown holder";
}

BlockCounts ToCounts(const std::array<int32_t, kNumBlockStates>& by_state) {
  BlockCounts counts;
  counts.quarantined = by_state[Index(BlockState::kQuarantined)];
  counts.in_flight = by_state[Index(BlockState::kInFlight)];
  counts.leased = by_state[Index(BlockState::kLeased)];
  counts.owned = by_state[Index(BlockState::kOwned)];
  counts.cached = by_state[Index(BlockState::kCached)];
  counts.free = by_state[Index(BlockState::kFree)];
  for (int32_t n : by_state) counts.total += n;
  return counts;
}

}  // namespace

BlockPool::BlockPool(int32_t num_blocks) {
  CHECK_GT(num_blocks, 0);
  blocks_.resize(num_blocks);
  free_.reserve(num_blocks);
  for (int32_t i = num_blocks - 1; i >= 0; --i) free_.push_back(BlockId(i));
  by_state_[Index(BlockState::kFree)] = num_blocks;
}

BlockState BlockPool::StateOf(const Block& block) {
  if (block.quarantined > 0) return BlockState::kQuarantined;
  if (block.wire > 0) return BlockState::kInFlight;
  if (block.holders[Index(BlockHolder::kLease)] > 0) return BlockState::kLeased;
  if (block.holders[Index(BlockHolder::kSequence)] > 0) return BlockState::kOwned;
  if (block.holders[Index(BlockHolder::kCache)] > 0) return BlockState::kCached;
  return BlockState::kFree;
}

BlockPool::Block& BlockPool::Checked(BlockId id, uint64_t owner) {
  CHECK(id.value >= 0 && id.value < num_blocks())
      << "block " << id << " of owner " << owner << " is not in a pool of " << num_blocks();
  return blocks_[id.value];
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Allocate(int32_t count, uint64_t owner) {
  thread_.Check();
  CHECK_GE(count, 0);
  if (count > num_free()) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", count, " blocks wanted, ",
                                                     num_free(), " of ", num_blocks(), " free"));
  }
  std::vector<BlockId> out;
  out.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    const BlockId id = free_.back();
    free_.pop_back();
    Block& block = blocks_[id.value];
    CHECK(StateOf(block) == BlockState::kFree)
        << "block " << id << " was in the free list but is in use; last owner " << block.last_owner;
    block.holders[Index(BlockHolder::kSequence)] = 1;
    block.last_owner = owner;
    out.push_back(id);
  }
  by_state_[Index(BlockState::kFree)] -= count;
  by_state_[Index(BlockState::kOwned)] += count;
  return out;
}

template <typename Counter>
void BlockPool::Change(absl::Span<const BlockId> blocks, uint64_t owner, int32_t delta,
                       const char* what, Counter counter) {
  thread_.Check();
  for (BlockId id : blocks) {
    Block& block = Checked(id, owner);
    const BlockState before = StateOf(block);
    int32_t& value = counter(block);
    if (delta > 0) {
      CHECK(before != BlockState::kFree) << what << " added to free block " << id << " by owner "
                                         << owner << "; last owner " << block.last_owner;
    } else {
      CHECK(value > 0) << what << " dropped twice: block " << id << ", owner " << owner
                       << ", last owner " << block.last_owner;
    }
    value += delta;
    block.last_owner = owner;
    const BlockState after = StateOf(block);
    if (after == before) continue;
    --by_state_[Index(before)];
    ++by_state_[Index(after)];
    if (after == BlockState::kFree) free_.push_back(id);
  }
}

void BlockPool::AddHolder(absl::Span<const BlockId> blocks, BlockHolder holder, uint64_t owner) {
  Change(blocks, owner, 1, HolderName(holder),
         [&](Block& b) -> int32_t& { return b.holders[Index(holder)]; });
}

void BlockPool::DropHolder(absl::Span<const BlockId> blocks, BlockHolder holder, uint64_t owner) {
  Change(blocks, owner, -1, HolderName(holder),
         [&](Block& b) -> int32_t& { return b.holders[Index(holder)]; });
}

void BlockPool::AddWire(absl::Span<const BlockId> blocks, uint64_t owner) {
  Change(blocks, owner, 1, "wire flag", [](Block& b) -> int32_t& { return b.wire; });
}

void BlockPool::DropWire(absl::Span<const BlockId> blocks, uint64_t owner) {
  Change(blocks, owner, -1, "wire flag", [](Block& b) -> int32_t& { return b.wire; });
}

void BlockPool::AddQuarantine(absl::Span<const BlockId> blocks, uint64_t owner) {
  Change(blocks, owner, 1, "quarantine", [](Block& b) -> int32_t& { return b.quarantined; });
}

void BlockPool::DropQuarantine(absl::Span<const BlockId> blocks, uint64_t owner) {
  Change(blocks, owner, -1, "quarantine", [](Block& b) -> int32_t& { return b.quarantined; });
}

BlockState BlockPool::state(BlockId block) const {
  CHECK(block.value >= 0 && block.value < num_blocks()) << "block " << block;
  return StateOf(blocks_[block.value]);
}

int32_t BlockPool::num_holders(BlockId block, BlockHolder holder) const {
  CHECK(block.value >= 0 && block.value < num_blocks()) << "block " << block;
  return blocks_[block.value].holders[Index(holder)];
}

BlockCounts BlockPool::counts() const { return ToCounts(by_state_); }

BlockCounts BlockPool::Audit() const {
  std::array<int32_t, kNumBlockStates> by_state = {};
  for (const Block& block : blocks_) ++by_state[Index(StateOf(block))];
  const BlockCounts counted = ToCounts(by_state);
  CHECK_EQ(counted.total, num_blocks());
  CHECK(by_state == by_state_) << "block counts by state have drifted";
  CHECK_EQ(counted.free, num_free());
  std::vector<bool> seen(blocks_.size(), false);
  for (BlockId id : free_) {
    CHECK(!seen[id.value]) << "block " << id << " is twice in the free list";
    seen[id.value] = true;
    CHECK(StateOf(blocks_[id.value]) == BlockState::kFree)
        << "block " << id << " is in the free list but in use by owner "
        << blocks_[id.value].last_owner;
  }
  return counted;
}

}  // namespace baton
