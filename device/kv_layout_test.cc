#include "device/kv_layout.h"

#include <set>

#include "gtest/gtest.h"

namespace baton {
namespace {

const KvLayout kLayout = {.num_layers = 2, .num_kv_heads = 1, .block_tokens = 64, .head_dim = 128};

TEST(KvLayout, FingerprintNamesEveryFieldThatTheBytesDependOn) {
  EXPECT_EQ(kLayout.Fingerprint(), "kv1 layers=2 heads=1 block=64 dim=128 dtype=f32 order=LH2TD");
  std::set<std::string> seen = {kLayout.Fingerprint()};
  KvLayout other = kLayout;
  other.num_layers = 3;
  EXPECT_TRUE(seen.insert(other.Fingerprint()).second);
  other = kLayout;
  other.num_kv_heads = 2;
  EXPECT_TRUE(seen.insert(other.Fingerprint()).second);
  other = kLayout;
  other.block_tokens = 32;
  EXPECT_TRUE(seen.insert(other.Fingerprint()).second);
  other = kLayout;
  other.head_dim = 64;
  EXPECT_TRUE(seen.insert(other.Fingerprint()).second);
  other = kLayout;
  other.dtype = DType::kBF16;
  EXPECT_TRUE(seen.insert(other.Fingerprint()).second);
}

TEST(KvLayout, StridesNestIntoTheBlock) {
  const KvLayout layout = {.num_layers = 3, .num_kv_heads = 5, .block_tokens = 16, .head_dim = 8};
  EXPECT_EQ(layout.value_offset(), 16 * 8);
  EXPECT_EQ(layout.head_stride(), 2 * 16 * 8);
  EXPECT_EQ(layout.layer_stride(), 5 * 2 * 16 * 8);
  EXPECT_EQ(layout.block_stride(), 3 * 5 * 2 * 16 * 8);
  EXPECT_EQ(layout.layer_bytes() * 3, layout.block_bytes());
  EXPECT_EQ(layout.block_bytes(), 3 * 5 * 2 * 16 * 8 * 4);
}

TEST(KvLayout, RefusesBlocksThatAreNoPowerOfTwoOrTooSmall) {
  EXPECT_TRUE(ValidateKvLayout(kLayout).ok());
  for (const int32_t tokens : {0, -64, 8, 17, 48, 2048}) {
    KvLayout layout = kLayout;
    layout.block_tokens = tokens;
    const absl::Status status = ValidateKvLayout(layout);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tokens;
    EXPECT_NE(status.message().find("block_tokens"), absl::string_view::npos);
  }
  KvLayout layout = kLayout;
  layout.head_dim = 0;
  EXPECT_FALSE(ValidateKvLayout(layout).ok());
  layout = kLayout;
  layout.num_layers = 0;
  EXPECT_FALSE(ValidateKvLayout(layout).ok());
}

TEST(KvPool, BlocksAreContiguousAndDisjoint) {
  KvLayout layout = kLayout;
  const auto size = static_cast<size_t>(3 * layout.block_bytes());
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(64, size)),
                                    [](std::byte* p) { std::free(p); });
  const KvPool pool(layout, 3, memory);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.block(BlockId(i)).data(), memory.get() + i * layout.block_bytes());
    EXPECT_EQ(static_cast<int64_t>(pool.block(BlockId(i)).size()), layout.block_bytes());
  }
  EXPECT_DEATH(pool.block(BlockId(3)), "block 3 of 3");
  EXPECT_DEATH(pool.block(BlockId(-1)), "block -1 of 3");
}

}  // namespace
}  // namespace baton
