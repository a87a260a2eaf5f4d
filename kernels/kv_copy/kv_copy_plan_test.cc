// PlanKvCopy lays ranges end to end and refuses those that kernels cannot take; KvCopyRangeOfByte
// finds the range of any byte among sizes equal, unequal and zero.
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kv_copy/kv_copy_cuda.h"
#include "kernels/kv_copy/kv_copy_range.h"

namespace baton::kernels {
namespace {

TEST(PlanKvCopy, LaysRangesEndToEndInStaging) {
  std::vector<KvCopyRange> ranges = {{.pool_offset = 4096, .bytes = 64},
                                     {.pool_offset = 0, .bytes = 0},
                                     {.pool_offset = 16, .bytes = 32}};
  int64_t total = -1;
  ASSERT_EQ(PlanKvCopy(ranges.data(), 3, 4160, &total), KernelStatus::kOk);
  EXPECT_EQ(total, 96);
  EXPECT_EQ(ranges[0].staging_offset, 0);
  EXPECT_EQ(ranges[1].staging_offset, 64);
  EXPECT_EQ(ranges[2].staging_offset, 64);
  ASSERT_EQ(PlanKvCopy(nullptr, 0, 0, &total), KernelStatus::kOk);
  EXPECT_EQ(total, 0);
}

TEST(PlanKvCopy, RefusesWhatIsOutsideOfThePoolOrOffTheVectors) {
  const auto plan = [](int64_t offset, int64_t bytes) {
    KvCopyRange range = {.pool_offset = offset, .bytes = bytes};
    int64_t total = 0;
    return PlanKvCopy(&range, 1, 1024, &total);
  };
  EXPECT_EQ(plan(0, 1024), KernelStatus::kOk);
  EXPECT_EQ(plan(1024, 0), KernelStatus::kOk);
  EXPECT_EQ(plan(16, 1024), KernelStatus::kInvalidArgument);
  EXPECT_EQ(plan(1040, 0), KernelStatus::kInvalidArgument);
  EXPECT_EQ(plan(-16, 16), KernelStatus::kInvalidArgument);
  EXPECT_EQ(plan(16, -16), KernelStatus::kInvalidArgument);
  EXPECT_EQ(plan(16, INT64_MAX - 15), KernelStatus::kInvalidArgument);
  EXPECT_EQ(plan(8, 16), KernelStatus::kUnsupported);
  EXPECT_EQ(plan(16, 8), KernelStatus::kUnsupported);
}

TEST(KvCopyRangeOfByte, FindsTheRangeOfEveryVector) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t equal = round % 3 == 0 ? 16 * static_cast<int64_t>(1 + rng() % 40) : 0;
    std::vector<KvCopyRange> ranges(1 + rng() % 60);
    int64_t pool_bytes = 0;
    for (KvCopyRange& range : ranges) {
      // A third of the rounds has many empty ranges, at both ends too.
      const int64_t random = 16 * static_cast<int64_t>(rng() % (round % 3 == 1 ? 3 : 500));
      range = {.pool_offset = pool_bytes, .bytes = equal != 0 ? equal : random};
      pool_bytes += range.bytes;
    }
    int64_t total = 0;
    ASSERT_EQ(PlanKvCopy(ranges.data(), static_cast<int64_t>(ranges.size()), pool_bytes, &total),
              KernelStatus::kOk);
    size_t expected = 0;
    for (int64_t byte = 0; byte < total; byte += 16) {
      while (byte >= ranges[expected].staging_offset + ranges[expected].bytes) ++expected;
      ASSERT_EQ(KvCopyRangeOfByte(ranges.data(), static_cast<int32_t>(ranges.size()), total, byte),
                static_cast<int32_t>(expected))
          << "byte " << byte << " of " << total << " round " << round;
    }
  }
}

}  // namespace
}  // namespace baton::kernels
