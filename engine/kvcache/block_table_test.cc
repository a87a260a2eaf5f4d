// Goal: block counts are right at and around block borders.
#include "engine/kvcache/block_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kvcache/kv_memory.h"

namespace baton {
namespace {

TEST(BlockTable, RoundsUpToWholeBlocks) {
  EXPECT_EQ(BlocksForTokens(0, 16), 0);
  EXPECT_EQ(BlocksForTokens(1, 16), 1);
  EXPECT_EQ(BlocksForTokens(15, 16), 1);
  EXPECT_EQ(BlocksForTokens(16, 16), 1);
  EXPECT_EQ(BlocksForTokens(17, 16), 2);
  EXPECT_EQ(BlocksForTokens(32, 16), 2);
}

TEST(BlockTable, CountsAsFullOnlyBlocksWithoutAFreeSlot) {
  EXPECT_EQ(FullBlocks(0, 16), 0);
  EXPECT_EQ(FullBlocks(15, 16), 0);
  EXPECT_EQ(FullBlocks(16, 16), 1);
  EXPECT_EQ(FullBlocks(31, 16), 1);
  EXPECT_EQ(FullBlocks(32, 16), 2);
}

TEST(KvMemory, ABlockIsOneContiguousRange) {
  std::vector<std::byte> bytes(4 * 10);
  const KvMemory kv = {bytes.data(), 10, 4, 16};
  EXPECT_EQ(kv.Block(BlockId(0)).data(), bytes.data());
  EXPECT_EQ(kv.Block(BlockId(3)).data(), bytes.data() + 30);
  EXPECT_EQ(kv.Block(BlockId(3)).size(), 10u);
}

TEST(KvMemoryDeathTest, ABlockOutsideThePoolDies) {
  std::vector<std::byte> bytes(10);
  const KvMemory kv = {bytes.data(), 10, 1, 16};
  EXPECT_DEATH(kv.Block(BlockId(1)), "block 1 of a pool of 1");
}

}  // namespace
}  // namespace baton
