// PlanKvCopy lays ranges end to end and refuses those that kernels cannot take.
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kv_copy/kv_copy_cuda.h"

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

}  // namespace
}  // namespace baton::kernels
