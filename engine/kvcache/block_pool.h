// Who holds which KV block of one pool. Knows indexes only, no memory.
//
// A block has counted holders of three kinds (sequences, the prefix cache, leases) and two counted
// flags: `wire` (a transfer may still read or write it) and `quarantined` (its transfer failed and
// quiescence is not proven). Flags are counted because two transfers may read one shared block.
//
// Invariants:
//  - A block is free, and may be allocated, only with no holder and no flag.
//  - Each block is counted once, under the first that applies of quarantined, in_flight (wire),
//    leased, owned (a sequence), cached, free; the counts add up to num_blocks().
//  - Dropping what is not held is a programmer's error and ends the process, naming block and
//  owner.
//
// Thread rule: owned by the EngineLoop thread.
#ifndef BATON_ENGINE_KVCACHE_BLOCK_POOL_H_
#define BATON_ENGINE_KVCACHE_BLOCK_POOL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/strong_id.h"
#include "common/base/thread_checker.h"

namespace baton {

enum class BlockHolder { kSequence = 0, kCache = 1, kLease = 2 };

// In order of precedence.
enum class BlockState { kQuarantined, kInFlight, kLeased, kOwned, kCached, kFree };
inline constexpr int kNumBlockStates = 6;

struct BlockCounts {
  int32_t total = 0;
  int32_t quarantined = 0;
  int32_t in_flight = 0;
  int32_t leased = 0;
  int32_t owned = 0;
  int32_t cached = 0;
  int32_t free = 0;
  friend bool operator==(const BlockCounts&, const BlockCounts&) = default;
};

class BlockPool {
 public:
  // REQUIRES: num_blocks > 0.
  explicit BlockPool(int32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  // `count` blocks, each with one kSequence holder. `owner` (a sequence's or transfer's number) is
  // kept for messages only. ERRORS: ResourceExhausted: fewer than `count` are free; none was taken.
  absl::StatusOr<std::vector<BlockId>> Allocate(int32_t count, uint64_t owner);

  // REQUIRES: no block is free (a free block has no content to share).
  void AddHolder(absl::Span<const BlockId> blocks, BlockHolder holder, uint64_t owner);
  // REQUIRES: every block has such a holder.
  void DropHolder(absl::Span<const BlockId> blocks, BlockHolder holder, uint64_t owner);

  // REQUIRES: no block is free.
  void AddWire(absl::Span<const BlockId> blocks, uint64_t owner);
  void AddQuarantine(absl::Span<const BlockId> blocks, uint64_t owner);
  // REQUIRES: every block carries the flag.
  void DropWire(absl::Span<const BlockId> blocks, uint64_t owner);
  void DropQuarantine(absl::Span<const BlockId> blocks, uint64_t owner);

  BlockState state(BlockId block) const;
  int32_t num_holders(BlockId block, BlockHolder holder) const;

  // Kept up to date by every call; O(1).
  BlockCounts counts() const;
  // Counts every block anew and checks it against counts() and the free list; O(num_blocks). A
  // difference ends the process.
  BlockCounts Audit() const;

 private:
  struct Block {
    std::array<int32_t, 3> holders = {0, 0, 0};
    int32_t wire = 0;
    int32_t quarantined = 0;
    uint64_t last_owner = 0;
  };

  static BlockState StateOf(const Block& block);
  Block& Checked(BlockId id, uint64_t owner);
  // Adds `delta` to one counter of each block and moves it between states.
  template <typename Counter>
  void Change(absl::Span<const BlockId> blocks, uint64_t owner, int32_t delta, const char* what,
              Counter counter);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // The last freed is given out first.
  std::array<int32_t, kNumBlockStates> by_state_ = {};
  ThreadChecker thread_;
};

}  // namespace baton

#endif  // BATON_ENGINE_KVCACHE_BLOCK_POOL_H_
