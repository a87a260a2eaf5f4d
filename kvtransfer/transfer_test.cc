// What both engines see of a hand-over over the local wire: delivery, cancelling, deadlines,
// leases, the limits of the interface, shutdown. Failures of pairs and peers are in
// transfer_pair_test.cc and transfer_judge_test.cc.
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvtransfer/fault/fault_wire.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/scripted_peer.h"
#include "kvtransfer/transfer_harness.h"

namespace baton::kvtransfer {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> PatternBytesOfTheBadOne() {
  static const std::vector<std::byte> bytes = PatternBytes(100, 99);
  return bytes;
}

TEST(Transfer, DeliversPushedBlocksAndThePayload) {
  TestBlocks blocks(5, 10000, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(42);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.Ranges(0, 2));
  h.sender().Push(id, blocks.Ranges(2, 3));
  h.sender().Finish(id, "first token");
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  EXPECT_EQ(h.at_receiver().events(id).delivered, 1) << h.at_receiver().events(id).status;
  EXPECT_EQ(h.at_receiver().events(id).payload, "first token");
  EXPECT_EQ(h.at_receiver().events(id).stats.bytes, blocks.total_bytes());
  EXPECT_TRUE(blocks.Equal());
  EXPECT_TRUE(blocks.GuardsIntact());
  ASSERT_TRUE(h.at_sender().AwaitDelivered(id)) << h.at_sender().events(id).status;
  EXPECT_EQ(h.at_sender().events(id).stats.bytes, blocks.total_bytes());
  EXPECT_GE(h.at_sender().events(id).stats.chunks, 13u) << "at most 4096 bytes a chunk";
  EXPECT_EQ(h.at_sender().events(id).quiescent, 0) << "leased until D confirms progress";
  h.receiver().ConfirmProgress(id);
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  EXPECT_EQ(h.at_sender().events(id).released, 1);
  EXPECT_TRUE(h.StagingFull());
}

TEST(Transfer, DeliversATransferWithoutBytes) {
  TestBlocks none(0, 1, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(1);
  ASSERT_TRUE(h.Expect(id, &none).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, {});
  h.sender().Finish(id, "only the token");
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  EXPECT_EQ(h.at_receiver().events(id).payload, "only the token");
  EXPECT_TRUE(h.at_sender().AwaitDelivered(id));
}

TEST(Transfer, DeliversManyAtATimeInPiecesOfEverySize) {
  constexpr uint64_t kCount = 40;
  std::vector<std::unique_ptr<TestBlocks>> blocks;
  TransferHarness h(MakeLocalWire());
  std::mt19937_64 rng(3);
  for (uint64_t i = 0; i < kCount; ++i) {
    blocks.push_back(std::make_unique<TestBlocks>(1 + i % 3, 1 + i * 211, i));
    ASSERT_TRUE(h.Expect(TransferId(i), blocks[i].get()).ok());
    ASSERT_TRUE(h.Begin(TransferId(i)).ok());
  }
  for (uint64_t i = 0; i < kCount; ++i) {
    const size_t block_bytes = 1 + i * 211;
    for (size_t b = 0; b < 1 + i % 3; ++b) {
      for (size_t offset = 0; offset < block_bytes;) {
        const size_t length = std::min<size_t>(1 + rng() % 3000, block_bytes - offset);
        h.sender().Push(TransferId(i), {blocks[i]->Piece(b, offset, length)});
        offset += length;
      }
    }
    h.sender().Finish(TransferId(i), std::to_string(i));
  }
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(h.at_receiver().AwaitQuiescent(TransferId(i))) << i;
    EXPECT_EQ(h.at_receiver().events(TransferId(i)).delivered, 1)
        << h.at_receiver().events(TransferId(i)).status;
    EXPECT_EQ(h.at_receiver().events(TransferId(i)).payload, std::to_string(i));
    EXPECT_TRUE(blocks[i]->Equal() && blocks[i]->GuardsIntact()) << i;
    h.receiver().ConfirmProgress(TransferId(i));
    ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(i))) << i;
  }
  EXPECT_TRUE(h.StagingFull());
  EXPECT_EQ(h.sender_counters().pairs_opened, 1u) << "all went over one pair";
}

TEST(Transfer, SplitsChunksByTheSmallerStagingSlotOfTheTwo) {
  TestBlocks blocks(1, 1000, 1);
  TransferOptions options = TestOptions();
  TransferHarness h(MakeLocalWire(), options);
  ScriptedPeer d;
  h.network().Listen(kTestAddress,
                     [&](std::shared_ptr<ControlLink> link) { d.Attach(std::move(link)); });
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  h.sender().Push(TransferId(1), blocks.AllRanges());
  ASSERT_TRUE(Eventually([&] { return d.attached(); }));
  auto offer = h.wire().Offer(kBound, [](absl::StatusOr<std::unique_ptr<WireEnd>>) {});
  ASSERT_TRUE(offer.ok());
  ASSERT_TRUE(d.Next<SenderHello>().has_value());
  ReceiverHello hello;
  hello.receiver_instance_id = kTestReceiverInstance;
  hello.wire_address = offer->address;
  hello.wire_token = offer->token;
  hello.staging_slot_bytes = 300;
  d.Say(hello);
  const auto ready = d.Next<ChunkReady>();
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->total_bytes, 300u);
  EXPECT_EQ(ready->sequence_number, 0u);
  ASSERT_EQ(ready->ranges.size(), 1u);
  EXPECT_EQ(ready->ranges[0].length, 300u);
}

TEST(Transfer, AnnouncesChunksAheadUpToThePairsPartOfTheStagingSlots) {
  TestBlocks blocks(1, 20 * 4096, 1);
  auto faults = std::make_shared<FaultController>(1);
  TransferHarness h(MakeFaultWire(MakeLocalWire(), faults));
  ScopedFault stall(faults, {.stall = true});
  std::atomic<int> ready{0}, go{0};
  h.network().SetHook([&](LinkDirection, const ControlMessage& m) {
    ready += std::holds_alternative<ChunkReady>(m);
    go += std::holds_alternative<ChunkGo>(m);
    return MemoryNetwork::Verdict{};
  });
  ASSERT_TRUE(h.Expect(TransferId(1), &blocks).ok());
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  h.sender().Push(TransferId(1), blocks.AllRanges());
  EXPECT_TRUE(Eventually([&] { return ready == 3 && go == 3; }));
  Pause(std::chrono::milliseconds(30));
  EXPECT_EQ(ready, 3) << "of 4 slots one is left for another pair";
  h.sender().Cancel(TransferId(1));
  h.network().SetHook(nullptr);
}

TEST(Transfer, OneBadTransferOfFiftyHarmsNoOther) {
  // PD-05: the bad one pushes a block that was not granted; some have no blocks, some less than
  // one.
  TransferHarness h(MakeLocalWire());
  size_t threads = 0;
  for (uint64_t wave = 0; wave < 2; ++wave) {
    std::vector<std::unique_ptr<TestBlocks>> blocks;
    const TimePoint start = Clock::Real()->Now();
    for (uint64_t i = 0; i < 50; ++i) {
      const TransferId id(wave * 100 + i);
      blocks.push_back(std::make_unique<TestBlocks>(i % 3, 1 + i * 97, i));
      ASSERT_TRUE(h.Expect(id, blocks[i].get()).ok());
      ASSERT_TRUE(h.Begin(id).ok());
      h.sender().Push(id, blocks[i]->AllRanges());
      if (i == 17) h.sender().Push(id, {{999, 0, PatternBytesOfTheBadOne()}});
      h.sender().Finish(id, "");
    }
    for (uint64_t i = 0; i < 50; ++i) {
      const TransferId id(wave * 100 + i);
      ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id)) << i;
      EXPECT_EQ(h.at_receiver().events(id).delivered, i == 17 ? 0 : 1) << i;
      EXPECT_EQ(h.at_receiver().events(id).failed, i == 17 ? 1 : 0) << i;
      h.receiver().ConfirmProgress(id);
      ASSERT_TRUE(h.at_sender().AwaitQuiescent(id)) << i;
      EXPECT_EQ(h.at_sender().events(id).failed, i == 17 ? 1 : 0) << i;
    }
    EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(10));
    const size_t threads_now = CountDirectory("/proc/self/task");
    if (wave == 1) {
      EXPECT_EQ(threads_now, threads);
    }
    threads = threads_now;
    EXPECT_TRUE(h.StagingFull());
  }
}

// Cancelling.

TEST(Transfer, CancelAtTheSenderTellsTheReceiverAndEndsQuiet) {
  TestBlocks blocks(2, 10000, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(1);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.Ranges(0, 1));
  ASSERT_TRUE(Eventually([&] { return h.receiver_counters().chunks >= 3; }));
  h.sender().Cancel(id);
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  EXPECT_EQ(h.at_sender().events(id).failed + h.at_sender().events(id).delivered, 0);
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  EXPECT_EQ(h.at_receiver().events(id).status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(h.StagingFull());
  EXPECT_EQ(h.sender_counters().pairs_failed, 0u) << "a cancel costs no pair";
}

TEST(Transfer, CancelBeforeThePairIsOpenEndsQuiet) {
  TransferHarness h(MakeLocalWire());
  h.network().Stall(LinkDirection::kToSender, true);
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  h.sender().Cancel(TransferId(1));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).failed, 0);
  h.network().Stall(LinkDirection::kToSender, false);
}

TEST(Transfer, CancelAtTheReceiverReleasesTheSenderAtOnce) {
  // PD-02: what P has prefilled must not be stranded when D does not want it.
  TestBlocks blocks(2, 10000, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(1);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.Ranges(0, 1));
  ASSERT_TRUE(Eventually([&] { return h.receiver_counters().chunks >= 3; }));
  const TimePoint start = Clock::Real()->Now();
  h.receiver().Cancel(id);
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(1));
  EXPECT_EQ(h.at_sender().events(id).released, 1);
  EXPECT_EQ(h.at_sender().events(id).failed, 0);
  EXPECT_TRUE(h.StagingFull());
}

TEST(Transfer, ChunksForATransferThatWasCancelledBeforeAreDropped) {
  TestBlocks blocks(2, 10000, 1);
  TransferHarness h(MakeLocalWire());
  const TransferId id(1);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  h.receiver().Cancel(id);
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  const auto before = blocks.Snapshot();
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.AllRanges());
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  EXPECT_THAT(std::string(h.at_sender().events(id).status.message()), HasSubstr("not expected"));
  EXPECT_EQ(blocks.Snapshot(), before);
  EXPECT_TRUE(h.StagingFull());
}

TEST(Transfer, NothingLandsInBlocksThatWereGivenBackAfterACancel) {
  // PD-04: A is cancelled with chunks on the wire; its blocks get their next owner at once.
  auto faults = std::make_shared<FaultController>(1);
  faults->Set({.delay = std::chrono::microseconds(300)});
  TransferHarness h(MakeFaultWire(MakeLocalWire(), faults));
  for (uint64_t round = 0; round < 200; ++round) {
    TestBlocks blocks(3, 9000, round);
    const TransferId id(round);
    ASSERT_TRUE(h.Expect(id, &blocks).ok());
    ASSERT_TRUE(h.Begin(id).ok());
    h.sender().Push(id, blocks.AllRanges());
    const uint64_t chunks = h.receiver_counters().chunks + round % 4;
    Eventually([&] { return h.receiver_counters().chunks >= chunks; });
    if (round % 2 == 0) {
      h.receiver().Cancel(id);
    } else {
      h.sender().Cancel(id);
    }
    ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
    ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
    blocks.Poison(std::byte{0x77});
    const auto owned = blocks.Snapshot();
    ASSERT_TRUE(h.StagingFull());  // Everything that was on the wire has ended.
    ASSERT_EQ(blocks.Snapshot(), owned) << "round " << round;
  }
  EXPECT_EQ(h.sender_counters().pairs_opened, 1u);
}

TEST(Transfer, CallsForIdsThatAreNotInUseAreIgnored) {
  TransferHarness h(MakeLocalWire());
  const TransferId id(77);
  TestBlocks blocks(1, 100, 1);
  h.sender().Push(id, blocks.AllRanges());
  h.sender().Finish(id, "");
  h.sender().Cancel(id);
  h.receiver().Cancel(id);
  h.receiver().ConfirmProgress(id);
  ASSERT_TRUE(h.Expect(id, &blocks).ok());
  ASSERT_TRUE(h.Begin(id).ok());
  h.sender().Push(id, blocks.AllRanges());
  h.sender().Finish(id, "");
  EXPECT_TRUE(h.at_sender().AwaitDelivered(id));
}

// Deadlines, on an injected clock.

TransferOptions PatientOptions() {
  TransferOptions options = TestOptions();
  // The fake clock jumps; only the deadline under test shall notice.
  options.heartbeat_limit = std::chrono::hours(24);
  options.chunk_limit = std::chrono::hours(24);
  options.connect_limit = std::chrono::seconds(5);
  return options;
}

TEST(Transfer, DeadlineExpiresAtBothSidesWhateverTheEngineDoes) {
  FakeClock clock;
  TestBlocks blocks(2, 10000, 1);
  TransferHarness h(MakeLocalWire(), PatientOptions(), &clock);
  const TransferId id(1);
  ASSERT_TRUE(h.Expect(id, &blocks, clock.Now() + std::chrono::seconds(30)).ok());
  ASSERT_TRUE(h.Begin(id, clock.Now() + std::chrono::seconds(30)).ok());
  h.sender().Push(id, blocks.Ranges(0, 1));  // And then the engine is wedged.
  ASSERT_TRUE(Eventually([&] { return h.receiver_counters().chunks >= 3; }));
  clock.Advance(std::chrono::seconds(29));
  Pause(std::chrono::milliseconds(20));
  EXPECT_EQ(h.at_sender().events(id).quiescent + h.at_receiver().events(id).quiescent, 0);
  clock.Advance(std::chrono::seconds(2));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id));
  // Whoever is first tells the other.
  EXPECT_EQ(h.at_sender().events(id).failed, 1);
  EXPECT_EQ(h.at_receiver().events(id).failed, 1);
  EXPECT_THAT(std::string(h.at_sender().events(id).status.message()), HasSubstr("deadline"));
  EXPECT_THAT(std::string(h.at_receiver().events(id).status.message()), HasSubstr("deadline"));
  EXPECT_TRUE(h.StagingFull());
}

TEST(Transfer, DeadlineExpiresForATransferThatNoSenderHasNamed) {
  FakeClock clock;
  TestBlocks blocks(1, 100, 1);
  TransferHarness h(MakeLocalWire(), PatientOptions(), &clock);
  ASSERT_TRUE(h.Expect(TransferId(1), &blocks, clock.Now() + std::chrono::seconds(1)).ok());
  clock.Advance(std::chrono::seconds(1));
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_receiver().events(TransferId(1)).status.code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Transfer, ADeadlineInThePastFailsAtOnce) {
  TransferHarness h(MakeLocalWire());
  ASSERT_TRUE(h.Begin(TransferId(1), TimePoint{}).ok());
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).status.code(), absl::StatusCode::kDeadlineExceeded);
}

// Leases.

// Delivers `id`; the lease is open afterwards.
void Deliver(TransferHarness* h, TransferId id) {
  TestBlocks blocks(1, 100, id.value);
  ASSERT_TRUE(h->Expect(id, &blocks).ok());
  ASSERT_TRUE(h->Begin(id).ok());
  h->sender().Push(id, blocks.AllRanges());
  h->sender().Finish(id, "");
  ASSERT_TRUE(h->at_receiver().AwaitQuiescent(id));
  ASSERT_TRUE(h->at_sender().AwaitDelivered(id)) << h->at_sender().events(id).status;
}

TEST(Lease, ExpiresWhenItIsNotRenewed) {
  FakeClock clock;
  TransferHarness h(MakeLocalWire(), PatientOptions(), &clock);
  Deliver(&h, TransferId(1));
  Deliver(&h, TransferId(2));
  h.network().SetHook([](LinkDirection, const ControlMessage& m) {
    return MemoryNetwork::Verdict{.deliver = !std::holds_alternative<LeaseRenew>(m), .delay = {}};
  });
  clock.Advance(std::chrono::seconds(11));
  for (uint64_t i : {1, 2}) {
    ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(i))) << "the sweep visits every lease";
    EXPECT_EQ(h.at_sender().events(TransferId(i)).status.code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  h.network().SetHook(nullptr);
}

TEST(Lease, IsRenewedByTheReceiverUpToTheTotalLimit) {
  FakeClock clock;
  TransferHarness h(MakeLocalWire(), PatientOptions(), &clock);
  Deliver(&h, TransferId(1));
  std::atomic<int> renewals{0};
  h.network().SetHook([&](LinkDirection, const ControlMessage& m) {
    renewals += std::holds_alternative<LeaseRenew>(m);
    return MemoryNetwork::Verdict{};
  });
  for (int i = 0; i < 30; ++i) {  // 90 s, in steps shorter than lease_limit.
    const int before = renewals;
    clock.Advance(std::chrono::seconds(3));
    ASSERT_TRUE(Eventually([&] { return renewals > before; })) << i;
    ASSERT_EQ(h.at_sender().events(TransferId(1)).quiescent, 0) << "step " << i;
  }
  clock.Advance(std::chrono::seconds(31));  // lease_total_limit is 2 minutes.
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).status.code(), absl::StatusCode::kDeadlineExceeded);
  h.network().SetHook(nullptr);
}

TEST(Lease, TheOldestEndsWhenThereAreTooMany) {
  TransferOptions options = TestOptions();
  options.leases_max = 2;
  TransferHarness h(MakeLocalWire(), options);
  for (uint64_t i = 1; i <= 3; ++i) Deliver(&h, TransferId(i));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(h.at_sender().events(TransferId(3)).quiescent, 0);
}

TEST(Lease, EndsWhenTheReceiverCancelsAfterReception) {
  TransferHarness h(MakeLocalWire());
  Deliver(&h, TransferId(1));
  h.receiver().Cancel(TransferId(1));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).released, 1);
  EXPECT_EQ(h.at_receiver().events(TransferId(1)).quiescent, 1) << "no second OnQuiescent";
}

TEST(Lease, EndsQuietWhenTheSenderCancels) {
  TransferHarness h(MakeLocalWire());
  Deliver(&h, TransferId(1));
  h.sender().Cancel(TransferId(1));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).failed, 0);
  h.receiver().ConfirmProgress(TransferId(1));  // Too late, and harmless.
  Deliver(&h, TransferId(2));
}

TEST(Lease, OutlivesTheFailureOfItsPairUntilItExpires) {
  FakeClock clock;
  TransferHarness h(MakeLocalWire(), PatientOptions(), &clock);
  Deliver(&h, TransferId(1));
  h.network().CutAll(absl::UnavailableError("test"));
  ASSERT_TRUE(Eventually([&] { return !h.at_sender().pair_failures().empty(); }));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).quiescent, 0) << "another D may fetch it";
  clock.Advance(std::chrono::seconds(11));
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).status.code(), absl::StatusCode::kDeadlineExceeded);
}

// The interface's own limits.

TEST(Transfer, RefusesIdsInUseUnknownModelsAndTooManyTransfers) {
  TransferOptions options = TestOptions();
  options.transfers_max = 2;
  TransferHarness h(MakeLocalWire(), options);
  TestBlocks blocks(1, 100, 1);
  ASSERT_TRUE(h.Expect(TransferId(1), &blocks).ok());
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  EXPECT_EQ(h.Expect(TransferId(1), &blocks).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(h.Begin(TransferId(1)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(h.sender().Begin(TransferId(2), "other", h.peer(), kNever, &h.at_sender()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(h.receiver()
                .Expect(TransferId(2), "other", blocks.Destinations(), kNever, &h.at_receiver())
                .code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<DestinationBlock> twice = blocks.Destinations();
  twice.push_back(twice[0]);
  EXPECT_EQ(h.receiver().Expect(TransferId(2), kTestModel, twice, kNever, &h.at_receiver()).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(h.Begin(TransferId(2)).ok());
  ASSERT_TRUE(h.Expect(TransferId(2), &blocks).ok());
  EXPECT_EQ(h.Begin(TransferId(3)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(h.Expect(TransferId(3), &blocks).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Transfer, FailsOnMisuseOfPushAndFinish) {
  TransferHarness h(MakeLocalWire());
  TestBlocks blocks(1, 100, 1);
  const auto fails = [&](uint64_t i, absl::StatusCode code, auto misuse) {
    const TransferId id(i);
    ASSERT_TRUE(h.Expect(id, &blocks).ok());
    ASSERT_TRUE(h.Begin(id).ok());
    misuse(id);
    ASSERT_TRUE(h.at_sender().AwaitQuiescent(id));
    EXPECT_EQ(h.at_sender().events(id).status.code(), code) << h.at_sender().events(id).status;
    ASSERT_TRUE(h.at_receiver().AwaitQuiescent(id)) << "D is told";
  };
  fails(1, absl::StatusCode::kFailedPrecondition, [&](TransferId id) {
    h.sender().Finish(id, "");
    h.sender().Push(id, blocks.AllRanges());
  });
  fails(2, absl::StatusCode::kInvalidArgument, [&](TransferId id) {
    h.sender().Push(id, blocks.AllRanges());
    h.sender().Finish(id, std::string(kTransferPayloadBytesMax + 1, 'x'));
  });
}

TEST(Transfer, FailsATransferThatPushesMoreThanCanWait) {
  TransferHarness h(MakeLocalWire());
  h.network().Stall(LinkDirection::kToSender, true);  // Nothing is gathered.
  TestBlocks blocks(1, 100, 1);
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  const std::vector<SourceRange> many(1 << 18, blocks.Piece(0, 0, 1));
  for (int i = 0; i < 5; ++i) h.sender().Push(TransferId(1), many);
  ASSERT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
  EXPECT_EQ(h.at_sender().events(TransferId(1)).status.code(),
            absl::StatusCode::kResourceExhausted);
  h.network().Stall(LinkDirection::kToSender, false);
}

// An engine that reacts inside the callback.
class ReentrantObserver : public RecordingObserver {
 public:
  explicit ReentrantObserver(TransferHarness* h) : h_(h) {}
  void OnQuiescent(TransferId id) override {
    RecordingObserver::OnQuiescent(id);
    if (id.value >= 5) return;
    // The id itself is free again here, and so is every other.
    EXPECT_TRUE(
        h_->sender().Begin(TransferId(id.value + 1), kTestModel, h_->peer(), kNever, this).ok());
    h_->sender().Cancel(TransferId(id.value + 1));
  }

 private:
  TransferHarness* const h_;
};

TEST(Transfer, ObserversMayCallBack) {
  TransferHarness h(MakeLocalWire());
  ReentrantObserver observer(&h);
  ASSERT_TRUE(h.sender().Begin(TransferId(1), kTestModel, h.peer(), kNever, &observer).ok());
  h.sender().Cancel(TransferId(1));
  EXPECT_TRUE(observer.AwaitQuiescent(TransferId(5)));
}

TEST(Transfer, ShutdownEndsEverythingOnceAndRefusesFromThenOn) {
  TestBlocks blocks(4, 10000, 1);
  TransferHarness h(MakeLocalWire());
  Deliver(&h, TransferId(1));
  ASSERT_TRUE(h.Expect(TransferId(2), &blocks).ok());
  ASSERT_TRUE(h.Begin(TransferId(2)).ok());
  h.sender().Push(TransferId(2), blocks.AllRanges());
  ASSERT_TRUE(h.Expect(TransferId(3), &blocks).ok());
  h.sender().Shutdown();
  h.receiver().Shutdown();
  for (uint64_t i : {1, 2}) {
    EXPECT_EQ(h.at_sender().events(TransferId(i)).quiescent, 1) << i;
    EXPECT_EQ(h.at_receiver().events(TransferId(i)).quiescent, 1) << i;
  }
  EXPECT_EQ(h.at_receiver().events(TransferId(3)).quiescent, 1);
  EXPECT_EQ(h.Begin(TransferId(4)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(h.Expect(TransferId(4), &blocks).code(), absl::StatusCode::kUnavailable);
  h.sender().Push(TransferId(4), blocks.AllRanges());
  h.sender().Shutdown();
  h.receiver().Shutdown();
  auto late = h.network().Dial(kTestAddress);
  std::atomic<bool> closed{false};
  late->Start({[](ControlMessage) {}, [&](const absl::Status&) { closed = true; }});
  EXPECT_TRUE(Eventually([&] { return closed.load(); }));
}

}  // namespace
}  // namespace baton::kvtransfer
