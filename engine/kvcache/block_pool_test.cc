// Goal: the holders and flags of a block decide, and nothing else, whether it may be used again,
// and the counts by state always add up. Method: every transition by hand, every misuse as a death
// test, and random operations from seeds against a model that keeps sets.
#include "engine/kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "absl/status/status.h"

namespace baton {
namespace {

std::vector<BlockId> Take(BlockPool& pool, int32_t count, uint64_t owner = 1) {
  auto blocks = pool.Allocate(count, owner);
  EXPECT_TRUE(blocks.ok()) << blocks.status();
  return *std::move(blocks);
}

TEST(BlockPool, StartsWithEveryBlockFree) {
  BlockPool pool(5);
  EXPECT_EQ(pool.Audit(), (BlockCounts{.total = 5, .free = 5}));
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(BlockPool, ReturnsResourceExhaustedWhenTooFewBlocksAreFreeAndTakesNone) {
  BlockPool pool(4);
  const auto held = Take(pool, 3);
  const auto refused = pool.Allocate(2, 9);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("2 blocks wanted, 1 of 4 free"),
            absl::string_view::npos)
      << refused.status();
  EXPECT_EQ(pool.num_free(), 1);
  pool.DropHolder(held, BlockHolder::kSequence, 1);
  EXPECT_EQ(pool.Audit().free, 4);
}

TEST(BlockPool, AllocatingNothingSucceedsOnAFullPool) {
  BlockPool pool(1);
  Take(pool, 1);
  EXPECT_TRUE(pool.Allocate(0, 2).ok());
}

TEST(BlockPool, NeverGivesOutOneBlockTwice) {
  BlockPool pool(64);
  auto blocks = Take(pool, 64);
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

TEST(BlockPool, ABlockIsFreeOnlyWithoutHoldersAndFlags) {
  BlockPool pool(1);
  const auto b = Take(pool, 1);
  pool.AddWire(b, 1);
  pool.DropHolder(b, BlockHolder::kSequence, 1);
  EXPECT_EQ(pool.num_free(), 0);
  pool.AddQuarantine(b, 1);
  pool.DropWire(b, 1);
  EXPECT_EQ(pool.num_free(), 0);
  pool.DropQuarantine(b, 1);
  EXPECT_EQ(pool.Audit().free, 1);
}

TEST(BlockPool, CountsABlockUnderTheFirstStateThatApplies) {
  BlockPool pool(1);
  const auto b = Take(pool, 1);
  pool.AddHolder(b, BlockHolder::kCache, 2);
  EXPECT_EQ(pool.counts().owned, 1);
  pool.AddHolder(b, BlockHolder::kLease, 3);
  EXPECT_EQ(pool.counts().leased, 1);
  pool.AddWire(b, 3);
  EXPECT_EQ(pool.counts().in_flight, 1);
  pool.AddQuarantine(b, 3);
  EXPECT_EQ(pool.Audit(), (BlockCounts{.total = 1, .quarantined = 1}));
  pool.DropQuarantine(b, 3);
  pool.DropWire(b, 3);
  pool.DropHolder(b, BlockHolder::kLease, 3);
  pool.DropHolder(b, BlockHolder::kSequence, 1);
  EXPECT_EQ(pool.Audit(), (BlockCounts{.total = 1, .cached = 1}));
  EXPECT_EQ(pool.state(b[0]), BlockState::kCached);
  pool.DropHolder(b, BlockHolder::kCache, 2);
  EXPECT_EQ(pool.Audit().free, 1);
}

TEST(BlockPool, TwoTransfersOfOneBlockBothHoldTheWireFlag) {
  BlockPool pool(1);
  const auto b = Take(pool, 1);
  pool.AddWire(b, 1);
  pool.AddWire(b, 2);
  pool.DropHolder(b, BlockHolder::kSequence, 1);
  pool.DropWire(b, 1);
  EXPECT_EQ(pool.counts().in_flight, 1);
  pool.DropWire(b, 2);
  EXPECT_EQ(pool.Audit().free, 1);
}

TEST(BlockPool, HoldersAreCounted) {
  BlockPool pool(2);
  const auto b = Take(pool, 1);
  pool.AddHolder(b, BlockHolder::kSequence, 2);
  EXPECT_EQ(pool.num_holders(b[0], BlockHolder::kSequence), 2);
  pool.DropHolder(b, BlockHolder::kSequence, 1);
  EXPECT_EQ(pool.num_free(), 1);
  pool.DropHolder(b, BlockHolder::kSequence, 2);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPoolDeathTest, ADoubleFreeNamesBlockAndOwner) {
  EXPECT_DEATH(
      {
        BlockPool pool(3);
        const auto b = Take(pool, 1, 7);
        pool.DropHolder(b, BlockHolder::kSequence, 7);
        pool.DropHolder(b, BlockHolder::kSequence, 7);
      },
      "sequence holder dropped twice: block 0, owner 7");
}

TEST(BlockPoolDeathTest, SharingOrFlaggingAFreeBlockDies) {
  EXPECT_DEATH(BlockPool(1).AddHolder({BlockId(0)}, BlockHolder::kLease, 4),
               "lease added to free block 0 by owner 4");
  EXPECT_DEATH(BlockPool(1).AddWire({BlockId(0)}, 5), "wire flag added to free block 0");
}

TEST(BlockPoolDeathTest, ClearingAFlagThatIsNotSetDies) {
  EXPECT_DEATH(
      {
        BlockPool pool(1);
        pool.DropQuarantine(Take(pool, 1), 6);
      },
      "quarantine dropped twice: block 0, owner 6");
}

TEST(BlockPoolDeathTest, ABlockOutsideThePoolDies) {
  EXPECT_DEATH(BlockPool(2).DropHolder({BlockId(2)}, BlockHolder::kSequence, 1), "block 2");
  EXPECT_DEATH(BlockPool(2).DropHolder({BlockId(-1)}, BlockHolder::kSequence, 1), "block -1");
}

// A plain model of one block.
struct Model {
  int32_t holders[3] = {0, 0, 0};
  int32_t wire = 0;
  int32_t quarantined = 0;
  bool free() const { return holders[0] + holders[1] + holders[2] + wire + quarantined == 0; }
};

TEST(BlockPool, AgreesWithAPlainModelOverRandomOperations) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    BlockPool pool(12);
    std::vector<Model> model(12);
    for (int i = 0; i < 2000; ++i) {
      const int op = static_cast<int>(random() % 9);
      const BlockId id(static_cast<int32_t>(random() % 12));
      Model& m = model[id.value];
      const std::vector<BlockId> one = {id};
      if (op == 0) {
        const int32_t count = static_cast<int32_t>(random() % 4);
        auto got = pool.Allocate(count, i);
        const int64_t free =
            std::count_if(model.begin(), model.end(), [](const Model& b) { return b.free(); });
        ASSERT_EQ(got.ok(), count <= free);
        if (!got.ok()) continue;
        for (BlockId b : *got) {
          ASSERT_TRUE(model[b.value].free());
          model[b.value].holders[0] = 1;
        }
      } else if (op <= 3) {
        if (m.free()) continue;
        pool.AddHolder(one, static_cast<BlockHolder>(op - 1), i);
        ++m.holders[op - 1];
      } else if (op <= 6) {
        if (m.holders[op - 4] == 0) continue;
        pool.DropHolder(one, static_cast<BlockHolder>(op - 4), i);
        --m.holders[op - 4];
      } else if (op == 7) {
        if (m.free()) continue;
        pool.AddWire(one, i);
        ++m.wire;
        pool.AddQuarantine(one, i);
        ++m.quarantined;
      } else {
        if (m.wire > 0 && random() % 2 == 0) {
          pool.DropWire(one, i);
          --m.wire;
        } else if (m.quarantined > 0) {
          pool.DropQuarantine(one, i);
          --m.quarantined;
        }
      }
      ASSERT_EQ(pool.state(id) == BlockState::kFree, m.free());
    }
    EXPECT_EQ(pool.Audit().total, 12);
  }
}

}  // namespace
}  // namespace baton
