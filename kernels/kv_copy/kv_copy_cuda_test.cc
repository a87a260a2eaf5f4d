// Gather, scatter and checksum on the GPU give the bytes and the sums of the host's.
#include "kernels/kv_copy/kv_copy_cuda.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kv_copy/kv_copy.h"
#include "kernels/launch/cuda_testing.h"

namespace baton::kernels {
namespace {

using testing::DeviceArray;
using testing::TestStream;

std::vector<std::byte> RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

struct Plan {
  std::vector<KvCopyRange> ranges;
  int64_t pool_bytes = 0;
  int64_t total_bytes = 0;
};

// Disjoint ranges of the given sizes, in random order and with gaps.
Plan PlanOf(const std::vector<int64_t>& sizes, uint64_t seed) {
  Plan plan;
  std::mt19937_64 rng(seed);
  for (const int64_t bytes : sizes) {
    plan.pool_bytes += static_cast<int64_t>(rng() % 3) * 16;
    plan.ranges.push_back({.pool_offset = plan.pool_bytes, .bytes = bytes});
    plan.pool_bytes += bytes;
  }
  std::shuffle(plan.ranges.begin(), plan.ranges.end(), rng);
  EXPECT_EQ(PlanKvCopy(plan.ranges.data(), static_cast<int64_t>(plan.ranges.size()),
                       plan.pool_bytes, &plan.total_bytes),
            KernelStatus::kOk);
  return plan;
}

void Check(const std::vector<int64_t>& sizes, bool checksum) {
  const Plan plan = PlanOf(sizes, 5);
  SCOPED_TRACE(::testing::Message() << sizes.size() << " ranges, " << plan.total_bytes << " bytes");
  const std::vector<std::byte> pool = RandomBytes(static_cast<size_t>(plan.pool_bytes), 6);
  std::vector<absl::Span<const std::byte>> sources;
  for (const KvCopyRange& range : plan.ranges) {
    sources.emplace_back(pool.data() + range.pool_offset, static_cast<size_t>(range.bytes));
  }
  std::vector<std::byte> staging(static_cast<size_t>(plan.total_bytes));
  const uint64_t sum = GatherBytes(sources, absl::MakeSpan(staging));

  const TestStream stream;
  const DeviceArray<std::byte> device_pool(pool);
  const DeviceArray<std::byte> device_staging(staging.size());
  const DeviceArray<KvCopyRange> ranges(plan.ranges);
  const DeviceArray<uint64_t> device_sum(1);
  KvCopyCudaParams p = {.pool = device_pool.data(),
                        .staging = device_staging.data(),
                        .ranges = ranges.data(),
                        .num_ranges = static_cast<int32_t>(plan.ranges.size()),
                        .total_bytes = plan.total_bytes,
                        .checksum = checksum ? device_sum.data() : nullptr};
  const uint64_t expected_sum = checksum ? sum : ~uint64_t{0};
  ASSERT_EQ(KvGatherCuda(p, stream.get()), KernelStatus::kOk);
  stream.Synchronize();
  EXPECT_EQ(device_staging.ToHost(), staging);
  EXPECT_EQ(device_sum.ToHost()[0], expected_sum);

  // Back into a pool of other bytes: only the ranges change.
  std::vector<std::byte> other(pool.size(), std::byte{0xFF});
  const DeviceArray<std::byte> device_other(pool.size());
  for (const KvCopyRange& range : plan.ranges) {
    std::copy_n(pool.begin() + range.pool_offset, range.bytes, other.begin() + range.pool_offset);
  }
  p.pool = device_other.data();
  ASSERT_EQ(KvScatterCuda(p, stream.get()), KernelStatus::kOk);
  stream.Synchronize();
  EXPECT_EQ(device_other.ToHost(), other);
  EXPECT_EQ(device_sum.ToHost()[0], expected_sum);
}

TEST(KvCopyCuda, HasTheHostsBytesAndChecksumInSmallShapes) {
  SKIP_WITHOUT_GPU();
  Check({}, true);
  Check({0, 0}, true);
  Check({16}, true);
  Check({0, 16, 0, 48, 16, 0}, true);
  Check({4096, 32768, 16, 65536 + 16}, true);
  Check({4096, 32768, 16, 65536 + 16}, false);
}

TEST(KvCopyCuda, HasTheHostsBytesAndChecksumForManyRanges) {
  SKIP_WITHOUT_GPU();
  std::mt19937_64 rng(8);
  for (const int64_t bound : {2, 64, 4096, 40000}) {
    std::vector<int64_t> sizes(700);
    for (int64_t& size : sizes)
      size = static_cast<int64_t>(rng() % static_cast<uint64_t>(bound)) * 16;
    Check(sizes, true);
  }
}

TEST(KvChecksumCuda, HasTheHostsSum) {
  SKIP_WITHOUT_GPU();
  for (const size_t bytes : {0, 16, 32, 4096, 32768, 1000000 / 16 * 16}) {
    const std::vector<std::byte> data = RandomBytes(bytes, 3);
    const TestStream stream;
    const DeviceArray<std::byte> device_data(data);
    const DeviceArray<uint64_t> sum(1);
    ASSERT_EQ(
        KvChecksumCuda(device_data.data(), static_cast<int64_t>(bytes), sum.data(), stream.get()),
        KernelStatus::kOk);
    stream.Synchronize();
    EXPECT_EQ(sum.ToHost()[0], KvChecksum(data)) << bytes;
  }
}

TEST(KvCopyCuda, RefusesWhatItCannotDo) {
  std::byte x{};
  uint64_t sum = 0;
  EXPECT_EQ(KvChecksumCuda(&x, 24, &sum, nullptr), KernelStatus::kUnsupported);
  EXPECT_EQ(KvChecksumCuda(&x, 16, nullptr, nullptr), KernelStatus::kInvalidArgument);
  EXPECT_EQ(KvGatherCuda({.total_bytes = 16}, nullptr), KernelStatus::kInvalidArgument);
  EXPECT_EQ(KvGatherCuda({}, nullptr), KernelStatus::kOk);
}

}  // namespace
}  // namespace baton::kernels
