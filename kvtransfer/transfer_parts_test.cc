// The parts that the state machines are made of, each alone: staging pool, lease table, coverage,
// ids in use, hello.
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvtransfer/active_transfers.h"
#include "kvtransfer/coverage.h"
#include "kvtransfer/hello.h"
#include "kvtransfer/lease_table.h"
#include "kvtransfer/range_copy.h"
#include "kvtransfer/staging_pool.h"
#include "kvtransfer/test_support.h"

namespace baton::kvtransfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(StagingPool, GivesEachSlotOnceAndTakesItBack) {
  StagingPool pool(3, 100, /*poison=*/true, AllocateStaging(nullptr, StagingPlace::kHost, 3 * 100));
  const auto a = pool.Acquire(), b = pool.Acquire(), c = pool.Acquire();
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(pool.Acquire(), std::nullopt);
  EXPECT_GE(std::abs(pool.bytes(*a).data() - pool.bytes(*b).data()), 100);
  pool.Release(*b);
  EXPECT_EQ(pool.Acquire(), b);
  for (StagingSlotId slot : {*a, *b, *c}) pool.Release(slot);
  EXPECT_EQ(pool.num_free(), 3u);
}

TEST(StagingPool, KeepsAQuarantinedSlotUntilItIsReleased) {
  StagingPool pool(1, 100, true, AllocateStaging(nullptr, StagingPlace::kHost, 1 * 100));
  const auto slot = pool.Acquire();
  pool.Quarantine(*slot);
  EXPECT_EQ(pool.num_quarantined(), 1u);
  EXPECT_EQ(pool.Acquire(), std::nullopt);
  pool.Release(*slot);
  EXPECT_EQ(pool.num_quarantined(), 0u);
  EXPECT_EQ(pool.num_free(), 1u);
}

TEST(StagingPoolDeathTest, NoticesAWriteIntoAFreeSlotAndADoubleRelease) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        StagingPool pool(1, 100, true, AllocateStaging(nullptr, StagingPlace::kHost, 1 * 100));
        const auto slot = pool.Acquire();
        pool.Release(*slot);
        pool.bytes(*slot)[50] = std::byte{1};
        (void)pool.Acquire();
      },
      "wrote into free staging slot");
  EXPECT_DEATH(
      {
        StagingPool pool(2, 100, false, AllocateStaging(nullptr, StagingPlace::kHost, 2 * 100));
        const auto slot = pool.Acquire();
        pool.Release(*slot);
        pool.Release(*slot);
      },
      "released twice");
}

TimePoint At(int seconds) { return TimePoint(std::chrono::seconds(seconds)); }

TEST(LeaseTable, SweepReturnsEveryExpiredLeaseAndKeepsTheRest) {
  LeaseTable leases({std::chrono::seconds(10), std::chrono::seconds(60), 100});
  for (uint64_t i = 0; i < 20; ++i) leases.Add(TransferId(i), At(static_cast<int>(i % 4)));
  EXPECT_EQ(leases.Sweep(At(9)).size(), 0u);
  EXPECT_EQ(leases.Sweep(At(11)).size(), 10u) << "those of seconds 0 and 1";
  EXPECT_EQ(leases.size(), 10u);
  EXPECT_EQ(leases.Sweep(At(100)).size(), 10u);
}

TEST(LeaseTable, RenewalExtendsALeaseUpToItsTotalLimit) {
  LeaseTable leases({std::chrono::seconds(10), std::chrono::seconds(25), 100});
  leases.Add(TransferId(1), At(0));
  for (int t : {8, 16, 24}) {
    EXPECT_TRUE(leases.Renew(TransferId(1), At(t)));
    EXPECT_TRUE(leases.Sweep(At(t + 1 > 24 ? 24 : t + 1)).empty()) << t;
  }
  EXPECT_THAT(leases.Sweep(At(25)), ElementsAre(TransferId(1)));
  EXPECT_FALSE(leases.Renew(TransferId(1), At(25)));
}

TEST(LeaseTable, TheOldestLeaseGoesForANewOneWhenThereAreTooMany) {
  LeaseTable leases({std::chrono::seconds(10), std::chrono::seconds(60), 2});
  EXPECT_EQ(leases.Add(TransferId(1), At(0)), std::nullopt);
  EXPECT_EQ(leases.Add(TransferId(2), At(0)), std::nullopt);
  leases.Renew(TransferId(1), At(5));
  EXPECT_EQ(leases.Add(TransferId(3), At(6)), TransferId(1)) << "oldest by age, not by renewal";
  EXPECT_TRUE(leases.Remove(TransferId(2)));
  EXPECT_FALSE(leases.Remove(TransferId(2)));
  EXPECT_EQ(leases.size(), 1u);
}

class CoverageTest : public ::testing::Test {
 protected:
  CoverageTest() : memory_(200) {
    auto coverage = Coverage::Create({{4, absl::MakeSpan(memory_).subspan(0, 100)},
                                      {9, absl::MakeSpan(memory_).subspan(100, 100)}});
    coverage_ = *std::move(coverage);
  }
  absl::Status Claim(std::vector<BlockRange> ranges, uint64_t total) {
    return coverage_.Claim(ranges, total).status();
  }

  std::vector<std::byte> memory_;
  Coverage coverage_;
};

TEST_F(CoverageTest, ReturnsWhereTheBytesBelongInOrder) {
  auto spans = coverage_.Claim(std::vector<BlockRange>{{9, 10, 5}, {4, 0, 100}}, 105);
  ASSERT_TRUE(spans.ok()) << spans.status();
  ASSERT_EQ(spans->size(), 2u);
  EXPECT_EQ((*spans)[0].data(), memory_.data() + 110);
  EXPECT_EQ((*spans)[0].size(), 5u);
  EXPECT_EQ((*spans)[1].data(), memory_.data());
}

TEST_F(CoverageTest, IsCompleteWhenEveryByteWasClaimedOnceInAnyOrder) {
  EXPECT_TRUE(Claim({{4, 50, 50}}, 50).ok());
  EXPECT_THAT(std::string(coverage_.CheckComplete().message()), HasSubstr("not covered"));
  EXPECT_TRUE(Claim({{4, 0, 20}, {9, 0, 100}}, 120).ok());
  EXPECT_THAT(std::string(coverage_.CheckComplete().message()), HasSubstr("logical block 4"));
  EXPECT_TRUE(Claim({{4, 20, 30}}, 30).ok());
  EXPECT_TRUE(coverage_.CheckComplete().ok());
}

TEST_F(CoverageTest, RefusesRangesOutsideWhatWasGranted) {
  const uint64_t huge = ~uint64_t{0};
  for (const BlockRange& range : std::vector<BlockRange>{{5, 0, 1},
                                                         {4, 100, 1},
                                                         {4, 99, 2},
                                                         {4, huge, 1},
                                                         {4, 1, huge},
                                                         {4, huge, huge},
                                                         {4, 0, 0}}) {
    EXPECT_EQ(Claim({range}, range.length).code(), absl::StatusCode::kInvalidArgument)
        << range.logical_block << " " << range.offset << " " << range.length;
  }
}

TEST_F(CoverageTest, RefusesOverlapsAndTotalsThatDoNotAddUp) {
  ASSERT_TRUE(Claim({{4, 10, 10}, {4, 30, 10}}, 20).ok());
  for (const BlockRange& range : std::vector<BlockRange>{
           {4, 10, 10}, {4, 9, 2}, {4, 19, 1}, {4, 0, 100}, {4, 20, 11}, {4, 35, 1}}) {
    EXPECT_EQ(Claim({range}, range.length).code(), absl::StatusCode::kInvalidArgument)
        << range.offset << " " << range.length;
  }
  EXPECT_EQ(Claim({{9, 0, 10}}, 11).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Claim({{9, 20, 10}}, 9).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CoverageTest, RefusesABlockNamedTwice) {
  EXPECT_EQ(Coverage::Create({{4, {}}, {4, {}}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Coverage, AgreesWithABitmapOnRandomRanges) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 300; ++round) {
    const size_t size = 1 + rng() % 60;
    std::vector<std::byte> memory(size);
    Coverage coverage = *Coverage::Create({{0, absl::MakeSpan(memory)}});
    std::vector<bool> covered(size, false);
    for (int i = 0; i < 60; ++i) {
      const uint64_t offset = rng() % (size + 2), length = rng() % (size + 2);
      bool legal = length > 0 && offset + length <= size;
      for (uint64_t b = offset; legal && b < offset + length; ++b) legal = !covered[b];
      const auto claimed = coverage.Claim(std::vector<BlockRange>{{0, offset, length}}, length);
      ASSERT_EQ(claimed.ok(), legal) << "round " << round << ": " << claimed.status();
      for (uint64_t b = offset; legal && b < offset + length; ++b) covered[b] = true;
      const bool all = std::all_of(covered.begin(), covered.end(), [](bool c) { return c; });
      ASSERT_EQ(coverage.CheckComplete().ok(), all) << "round " << round;
    }
  }
}

TEST(Coverage, BoundsThePiecesThatAHostilePeerCanMake) {
  std::vector<std::byte> memory(2 * kCoveragePiecesMax + 10);
  Coverage coverage = *Coverage::Create({{0, absl::MakeSpan(memory)}});
  for (uint64_t i = 0; i < kCoveragePiecesMax; ++i) {
    ASSERT_TRUE(coverage.Claim(std::vector<BlockRange>{{0, 2 * i, 1}}, 1).ok()) << i;
  }
  EXPECT_EQ(
      coverage.Claim(std::vector<BlockRange>{{0, 2 * kCoveragePiecesMax, 1}}, 1).status().code(),
      absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(coverage.Claim(std::vector<BlockRange>{{0, 1, 1}}, 1).ok()) << "joins two pieces";
}

TEST(ActiveTransfers, BoundsIdsAndPushedRanges) {
  ActiveTransfers active(2);
  EXPECT_TRUE(active.Add(TransferId(1)).ok());
  EXPECT_EQ(active.Add(TransferId(1)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(active.Add(TransferId(2)).ok());
  EXPECT_EQ(active.Add(TransferId(3)).code(), absl::StatusCode::kResourceExhausted);
  active.Remove(TransferId(2));
  EXPECT_TRUE(active.Add(TransferId(3)).ok());
  using Result = ActiveTransfers::PushResult;
  EXPECT_EQ(active.Push(TransferId(9), 1), Result::kUnknown);
  EXPECT_EQ(active.Push(TransferId(1), kPushedRangesMax), Result::kAccepted);
  active.Gathered(TransferId(1), 10);
  EXPECT_EQ(active.Push(TransferId(1), 10), Result::kAccepted);
  EXPECT_EQ(active.Push(TransferId(1), 1), Result::kOverflow);
  EXPECT_EQ(active.Push(TransferId(1), 1), Result::kUnknown) << "reported once";
  EXPECT_TRUE(active.ShutDown());
  EXPECT_FALSE(active.ShutDown());
  EXPECT_EQ(active.Add(TransferId(4)).code(), absl::StatusCode::kUnavailable);
}

TEST(Hello, LayoutsSurviveEncodingAndMalformedOnesAreRefused) {
  const KvLayouts layouts = {{"a", "x=y"}, {"b", ""}};
  EXPECT_THAT(EncodeKvLayouts(layouts), ElementsAre("a=x=y", "b="));
  EXPECT_EQ(*DecodeKvLayouts(EncodeKvLayouts(layouts)), layouts);
  EXPECT_FALSE(DecodeKvLayouts({"noequals"}).ok());
  EXPECT_FALSE(DecodeKvLayouts({"a=1", "a=2"}).ok());
  EXPECT_FALSE(DecodeKvLayouts({"a=" + std::string(kHelloLayoutBytesMax, 'x')}).ok());
  EXPECT_FALSE(DecodeKvLayouts(std::vector<std::string>(kHelloModelsMax + 1, "a=1")).ok());
}

SenderHello HelloFor(KvLayouts layouts) {
  SenderHello hello;
  hello.receiver_instance_id = 5;
  hello.kv_layouts = EncodeKvLayouts(layouts);
  hello.wire = "tcp";
  return hello;
}

TEST(Hello, AWireThatMayFallBackMeetsThoseItCanBecome) {
  for (const char* name : {"auto", "tcp", "nccl"}) {
    EXPECT_TRUE(WiresFit(name, name));
    EXPECT_TRUE(WiresFit("auto", name));
    EXPECT_TRUE(WiresFit(name, "auto"));
  }
  EXPECT_FALSE(WiresFit("tcp", "nccl"));
  EXPECT_FALSE(WiresFit("nccl", "tcp"));
  EXPECT_FALSE(WiresFit("auto", "local"));
  EXPECT_FALSE(WiresFit("", "auto"));
  EXPECT_TRUE(WiresFit("local", "local"));
}

TEST(Hello, NamesBothSidesValuesInEveryRefusal) {
  const KvLayouts own = {{"a", "dtype=f16"}, {"b", "L2"}};
  EXPECT_TRUE(CheckSenderHello(HelloFor({{"a", "dtype=f16"}, {"c", "L3"}}), 5, "tcp", own).ok());

  const auto message = [&](const SenderHello& hello) {
    const absl::Status s = CheckSenderHello(hello, 5, "tcp", own);
    EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition) << s;
    return std::string(s.message());
  };
  EXPECT_THAT(
      message(HelloFor({{"a", "dtype=f32"}})),
      ::testing::AllOf(HasSubstr("model 'a'"), HasSubstr("dtype=f32"), HasSubstr("dtype=f16")));
  EXPECT_THAT(message(HelloFor({{"z", "dtype=f16"}})), HasSubstr("no model in common"));
  SenderHello version = HelloFor(own);
  version.protocol_version = 2;
  EXPECT_THAT(message(version), ::testing::AllOf(HasSubstr("version 2"), HasSubstr(", 1 of")));
  SenderHello instance = HelloFor(own);
  instance.receiver_instance_id = 4;
  EXPECT_THAT(message(instance),
              ::testing::AllOf(HasSubstr("instance 4"), HasSubstr("instance 5")));
  SenderHello wire = HelloFor(own);
  wire.wire = "nccl";
  EXPECT_THAT(message(wire), ::testing::AllOf(HasSubstr("'nccl'"), HasSubstr("'tcp'")));
}

TEST(Hello, ChecksTheAnswerOfTheDecodeWorker) {
  ReceiverHello good;
  good.receiver_instance_id = 5;
  good.staging_slot_bytes = 1;
  EXPECT_TRUE(CheckReceiverHello(good, 5).ok());
  EXPECT_FALSE(CheckReceiverHello(good, 6).ok());
  ReceiverHello version = good;
  version.protocol_version = 9;
  EXPECT_FALSE(CheckReceiverHello(version, 5).ok());
  ReceiverHello refusal = good;
  refusal.refusal = "because";
  EXPECT_THAT(std::string(CheckReceiverHello(refusal, 5).message()), HasSubstr("because"));
  ReceiverHello no_staging = good;
  no_staging.staging_slot_bytes = 0;
  EXPECT_FALSE(CheckReceiverHello(no_staging, 5).ok());
}

}  // namespace
}  // namespace baton::kvtransfer
