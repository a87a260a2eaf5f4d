// Pairs that fail: at first contact, by silence, by their link, by their wire, and what is left
// after it. Everything is tried over a real pair with faults injected below or beside it.
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvtransfer/fault/fault_wire.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/nccl/two_process_wire.h"
#include "kvtransfer/scripted_peer.h"
#include "kvtransfer/transfer_harness.h"

namespace baton::kvtransfer {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TransferOptions ImpatientOptions() {
  TransferOptions options = TestOptions();
  options.heartbeat_interval = milliseconds(30);
  options.heartbeat_limit = milliseconds(250);
  options.chunk_limit = milliseconds(250);
  options.connect_limit = milliseconds(250);
  return options;
}

// An end that wants no pieces of more than 1,000 bytes.
class SmallPieces : public WireEnd {
 public:
  explicit SmallPieces(std::unique_ptr<WireEnd> inner) : inner_(std::move(inner)) {}
  void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                Completion done) override {
    EXPECT_LE(bytes.size(), 1000u);
    inner_->PostSend(sequence_number, bytes, std::move(done));
  }
  void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes,
                   Completion done) override {
    inner_->PostReceive(sequence_number, bytes, std::move(done));
  }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }
  bool Quiescent() const override { return inner_->Quiescent(); }
  uint64_t piece_bytes_max() const override { return 1000; }

 private:
  const std::unique_ptr<WireEnd> inner_;
};

TEST(PairPieces, AreNoLargerThanTheEndWants) {
  TransferHarness h(std::make_unique<DecoratedWire>(
      MakeLocalWire(), [](std::unique_ptr<WireEnd> end) -> std::unique_ptr<WireEnd> {
        return std::make_unique<SmallPieces>(std::move(end));
      }));
  TestBlocks blocks(3, 5000, 1);
  ASSERT_TRUE(h.Expect(TransferId(1), &blocks).ok());
  ASSERT_TRUE(h.Begin(TransferId(1)).ok());
  h.sender().Push(TransferId(1), blocks.AllRanges());
  h.sender().Finish(TransferId(1), "");
  ASSERT_TRUE(h.at_receiver().AwaitQuiescent(TransferId(1)));
  EXPECT_TRUE(blocks.Equal());
  EXPECT_EQ(h.receiver_counters().chunks, 15u);
  h.receiver().ConfirmProgress(TransferId(1));
  EXPECT_TRUE(h.at_sender().AwaitQuiescent(TransferId(1)));
}

class PairTest : public ::testing::Test {
 protected:
  PairTest() : faults_(std::make_shared<FaultController>(11)) { Start(ImpatientOptions()); }

  void Start(const TransferOptions& options, const Clock* clock = Clock::Real()) {
    h_.reset();
    h_ = std::make_unique<TransferHarness>(MakeFaultWire(MakeLocalWire(), faults_), options, clock);
  }
  // Begins a transfer at both sides that stays unfinished after its first block.
  void StartTransfer(uint64_t id) {
    blocks_.push_back(std::make_unique<TestBlocks>(8, 10000, id));
    ASSERT_TRUE(h_->Expect(TransferId(id), blocks_.back().get()).ok());
    ASSERT_TRUE(h_->Begin(TransferId(id)).ok());
    h_->sender().Push(TransferId(id), blocks_.back()->Ranges(0, 1));
  }
  // A whole transfer goes through, perhaps after the back-off, and leaves nothing behind.
  void ExpectUsable(uint64_t id) {
    ExpectDelivered(id);
    EXPECT_TRUE(h_->StagingFull());
  }
  void ExpectDelivered(uint64_t id) {
    TestBlocks blocks(3, 5000, id);
    ASSERT_TRUE(h_->Expect(TransferId(id), &blocks).ok());
    ASSERT_TRUE(h_->Begin(TransferId(id)).ok());
    h_->sender().Push(TransferId(id), blocks.AllRanges());
    h_->sender().Finish(TransferId(id), "");
    ASSERT_TRUE(h_->at_receiver().AwaitQuiescent(TransferId(id)));
    EXPECT_TRUE(h_->at_sender().AwaitDelivered(TransferId(id)))
        << h_->at_sender().events(TransferId(id)).status;
    EXPECT_TRUE(blocks.Equal());
    h_->receiver().ConfirmProgress(TransferId(id));
    EXPECT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(id)));
  }
  void AwaitChunks(uint64_t count) {
    ASSERT_TRUE(Eventually([&] { return h_->receiver_counters().chunks >= count; }));
  }
  // The transfer failed at P with `code` and the pair was reported before it.
  void ExpectFailedAtSender(uint64_t id, absl::StatusCode code) {
    ASSERT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(id)));
    const TransferEvents e = h_->at_sender().events(TransferId(id));
    EXPECT_EQ(e.failed, 1);
    EXPECT_EQ(e.status.code(), code) << e.status;
    ASSERT_FALSE(h_->at_sender().pair_failures().empty());
    EXPECT_EQ(h_->at_sender().failed_before_pair(), 0) << "OnPairFailed comes first";
  }
  void ExpectFailedAtReceiver(uint64_t id) {
    ASSERT_TRUE(h_->at_receiver().AwaitQuiescent(TransferId(id)));
    EXPECT_EQ(h_->at_receiver().events(TransferId(id)).failed, 1);
  }

  FakeClock clock_;  // For those who Start with it.
  std::shared_ptr<FaultController> faults_;
  std::vector<std::unique_ptr<TestBlocks>> blocks_;
  std::unique_ptr<TransferHarness> h_;
};

// First contact.

TEST_F(PairTest, AnAddressWhereNobodyListensFailsThePairAndItIsDialledAnew) {
  h_->network().StopListening(kTestAddress);
  ASSERT_TRUE(h_->Begin(TransferId(1)).ok());
  ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  h_->Listen();
  const TimePoint start = Clock::Real()->Now();
  ExpectUsable(2);
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(2)) << "the back-off is at most 1 s";
}

TEST_F(PairTest, TheBackOffGrowsWithEveryFailureUpToItsLimit) {
  TransferOptions options = TestOptions();
  Start(options, &clock_);
  h_->network().StopListening(kTestAddress);
  for (uint64_t i = 1; i <= 12; ++i) {
    ASSERT_TRUE(h_->Begin(TransferId(i)).ok());
    clock_.Advance(options.redial_limit);
    ASSERT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(i))) << i;
  }
  ASSERT_TRUE(h_->Begin(TransferId(100)).ok());
  clock_.Advance(options.redial_limit - milliseconds(1));
  Pause(milliseconds(30));
  EXPECT_EQ(h_->at_sender().events(TransferId(100)).quiescent, 0) << "not dialled yet";
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(100)));
}

TEST_F(PairTest, AHelloThatDoesNotComeFailsThePairInConnectLimit) {
  h_->network().Stall(LinkDirection::kToSender, true);
  ASSERT_TRUE(h_->Begin(TransferId(1)).ok());
  ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  // The receiver hears nothing either, so on a slow machine its own limit may end the pair first.
  EXPECT_THAT(std::string(h_->at_sender().events(TransferId(1)).status.message()),
              AnyOf(HasSubstr("connect_limit"), HasSubstr("heartbeat_limit")));
  h_->network().Stall(LinkDirection::kToSender, false);
  ExpectUsable(2);
}

TEST_F(PairTest, ALinkWithoutAHelloIsClosedByTheReceiver) {
  ScriptedSender silent(h_.get());
  EXPECT_TRUE(silent.AwaitClosed());
  ExpectUsable(1);
}

TEST_F(PairTest, ASenderThatDoesNotConnectTheWireIsClosedByTheReceiver) {
  ScriptedSender half(h_.get());
  half.Say(GoodSenderHello());
  ASSERT_TRUE(half.Next<ReceiverHello>().has_value());
  EXPECT_TRUE(half.AwaitClosed());
}

TEST_F(PairTest, UnequalLayoutsAreRefusedNamingBothAndNothingIsEverSent) {
  // PD-07: data type, block size, layer count, model hash, head count: all are in the fingerprint.
  std::atomic<int> ready{0};
  h_->network().SetHook([&](LinkDirection, const ControlMessage& m) {
    ready += std::holds_alternative<ChunkReady>(m);
    return MemoryNetwork::Verdict{};
  });
  uint64_t id = 1;
  for (const char* layout : {"dtype=f32;block=64;layers=2", "dtype=f16;block=16;layers=2",
                             "dtype=f16;block=64;layers=3", "hash=2", "heads=4"}) {
    h_->StartReceiver(kTestReceiverInstance, {{kTestModel, layout}, {"other", "same"}});
    h_->StartSender({{kTestModel, "dtype=f16;block=64;layers=2"}, {"other", "same"}});
    TestBlocks blocks(1, 100, 1);
    ASSERT_TRUE(h_->Expect(TransferId(id), &blocks).ok());
    ASSERT_TRUE(h_->Begin(TransferId(id)).ok());
    h_->sender().Push(TransferId(id), blocks.AllRanges());
    ExpectFailedAtSender(id, absl::StatusCode::kFailedPrecondition);
    const std::string message(h_->at_sender().events(TransferId(id)).status.message());
    EXPECT_THAT(message, HasSubstr(layout));
    EXPECT_THAT(message, HasSubstr("'dtype=f16;block=64;layers=2'"));
    EXPECT_EQ(h_->at_sender().pair_failures().back().message(), message);
    h_->receiver().Cancel(TransferId(id));
    ASSERT_TRUE(h_->at_receiver().AwaitQuiescent(TransferId(id)));
    h_->sender().Shutdown();
    // Only the failures of this round are looked at in the next.
    ++id;
    if (layout == std::string("heads=4")) break;
    Start(ImpatientOptions());
    h_->network().SetHook([&](LinkDirection, const ControlMessage& m) {
      ready += std::holds_alternative<ChunkReady>(m);
      return MemoryNetwork::Verdict{};
    });
  }
  EXPECT_EQ(ready, 0);
  h_->network().SetHook(nullptr);
}

TEST_F(PairTest, AnotherProtocolVersionIsRefused) {
  ScriptedSender old(h_.get());
  SenderHello hello = GoodSenderHello();
  hello.protocol_version = 7;
  EXPECT_FALSE(old.Open(hello));
}

TEST_F(PairTest, ARestartedReceiverIsNotTakenForTheOldOne) {
  h_->StartReceiver(kTestReceiverInstance + 1, {{kTestModel, "layout-1"}});
  ASSERT_TRUE(h_->Begin(TransferId(1)).ok());
  ExpectFailedAtSender(1, absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(h_->at_sender().events(TransferId(1)).status.message()),
              HasSubstr("restarted"));
  h_->peer().instance_id = kTestReceiverInstance + 1;
  ExpectUsable(2);
}

TEST_F(PairTest, ARefusedWireFailsThePair) {
  {
    ScopedFault fault(faults_, {.refuse_connect = true});
    StartTransfer(1);
    ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  }
  {
    ScopedFault fault(faults_, {.refuse_offer = true});
    StartTransfer(2);
    ExpectFailedAtSender(2, absl::StatusCode::kFailedPrecondition);
  }
  ExpectUsable(3);
}

TEST_F(PairTest, ANewLinkOfTheSameSenderReplacesItsOldPair) {
  ScriptedSender first(h_.get());
  ASSERT_TRUE(first.Open());
  ScriptedSender second(h_.get());
  ASSERT_TRUE(second.Open());
  EXPECT_TRUE(first.AwaitClosed());
  EXPECT_FALSE(second.closed());
}

TEST_F(PairTest, TooManyPairsAreRefusedWithoutHarmToOthers) {
  TransferOptions options = TestOptions();
  options.pairs_max = 3;
  Start(options);
  std::vector<std::unique_ptr<ScriptedSender>> senders;
  for (int i = 0; i < 2; ++i) senders.push_back(std::make_unique<ScriptedSender>(h_.get()));
  ExpectUsable(1);
  ScriptedSender fourth(h_.get());
  EXPECT_TRUE(fourth.AwaitClosed());
  ExpectUsable(2);
}

// Silence, links.

TEST_F(PairTest, ASilentReceiverIsNoticedByHeartbeats) {
  StartTransfer(1);
  AwaitChunks(3);
  const TimePoint start = Clock::Real()->Now();
  h_->network().Stall(LinkDirection::kToSender, true);  // A stopped process keeps its sockets.
  ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(h_->at_sender().events(TransferId(1)).status.message()),
              HasSubstr("heartbeat_limit"));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(5));
  ExpectFailedAtReceiver(1);
  h_->network().Stall(LinkDirection::kToSender, false);
  ExpectUsable(2);
}

TEST_F(PairTest, ASilentSenderIsNoticedByHeartbeats) {
  StartTransfer(1);
  AwaitChunks(3);
  h_->network().Stall(LinkDirection::kToReceiver, true);
  ExpectFailedAtReceiver(1);
  EXPECT_THAT(std::string(h_->at_receiver().events(TransferId(1)).status.message()),
              HasSubstr("heartbeat_limit"));
  ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  h_->network().Stall(LinkDirection::kToReceiver, false);
  ExpectUsable(2);
}

TEST_F(PairTest, AnIdlePairLivesOnHeartbeatsAlone) {
  ExpectUsable(1);
  Pause(milliseconds(600));
  ExpectUsable(2);
  EXPECT_EQ(h_->sender_counters().pairs_opened, 1u);
}

TEST_F(PairTest, ALostLinkFailsAllTransfersOfThePair) {
  for (uint64_t i = 1; i <= 5; ++i) StartTransfer(i);
  AwaitChunks(15);
  h_->network().CutAll(absl::UnavailableError("cable"));
  for (uint64_t i = 1; i <= 5; ++i) {
    ExpectFailedAtSender(i, absl::StatusCode::kUnavailable);
    ExpectFailedAtReceiver(i);
    EXPECT_TRUE(blocks_[i - 1]->GuardsIntact());
  }
  EXPECT_EQ(h_->at_sender().pair_failures().size(), 1u) << "once for the observer";
  ExpectUsable(6);
}

TEST_F(PairTest, AnIdlePairIsClosedAndOpenedAnew) {
  TransferOptions options = TestOptions();
  options.heartbeat_limit = std::chrono::hours(24);
  Start(options, &clock_);
  ExpectUsable(1);
  clock_.Advance(options.pair_idle_limit);
  EXPECT_TRUE(Eventually([&] { return h_->sender_counters().pairs == 0; }));
  EXPECT_TRUE(Eventually([&] { return h_->receiver_counters().pairs == 0; }));
  ExpectUsable(2);
  EXPECT_TRUE(h_->at_sender().pair_failures().empty());
}

// Wires.

TEST_F(PairTest, AWireThatBreaksFailsThePair) {
  uint64_t id = 1;
  for (const FaultPolicy& policy :
       {FaultPolicy{.cut_after_bytes = 20000}, FaultPolicy{.corrupt_after_bytes = 20000},
        FaultPolicy{.fail_every = 9}}) {
    {
      ScopedFault fault(faults_, policy);
      StartTransfer(id);
      h_->sender().Push(TransferId(id), blocks_.back()->Ranges(1, 7));
      h_->sender().Finish(TransferId(id), "");
      ExpectFailedAtReceiver(id);
      ASSERT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(id)));
      EXPECT_EQ(h_->at_sender().events(TransferId(id)).failed, 1);
      EXPECT_TRUE(blocks_.back()->GuardsIntact());
    }
    EXPECT_TRUE(h_->StagingFull());
    ExpectUsable(id + 1);
    id += 2;
  }
}

TEST_F(PairTest, CorruptionThatTheWireDoesNotSeeIsDataLoss) {
  ScopedFault fault(faults_, {.corrupt_after_bytes = 5000});
  StartTransfer(1);
  ExpectFailedAtReceiver(1);
  EXPECT_EQ(h_->at_receiver().events(TransferId(1)).status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(PairTest, AChunkThatDoesNotArriveAfterGoFailsThePairInChunkLimit) {
  {
    ScopedFault fault(faults_, {.stall = true});
    StartTransfer(1);
    ExpectFailedAtReceiver(1);
    EXPECT_THAT(std::string(h_->at_receiver().events(TransferId(1)).status.message()),
                ::testing::AnyOf(HasSubstr("chunk_limit"), HasSubstr("link")));
    ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
    EXPECT_TRUE(h_->StagingFull()) << "an abort ends a stalled wire";
  }
  ExpectUsable(2);
}

TEST_F(PairTest, SlotsStayInQuarantineUntilTheWireIsQuiescent) {
  ScopedFault fault(faults_, {.stall = true});
  StartTransfer(1);
  ASSERT_TRUE(Eventually([&] { return h_->receiver_counters().staging_slots_free < 4; }));
  faults_->Set({.stall = true, .hide_quiescence = true});
  h_->network().CutAll(absl::UnavailableError("test"));
  // The transfer ends: only this thread writes its blocks, and it will not. The slots do not.
  ExpectFailedAtReceiver(1);
  ExpectFailedAtSender(1, absl::StatusCode::kUnavailable);
  Pause(milliseconds(50));
  EXPECT_GT(h_->receiver_counters().staging_slots_quarantined, 0u);
  EXPECT_LT(h_->receiver_counters().staging_slots_free, 4u);
  EXPECT_TRUE(h_->unquiescent().empty());
  faults_->Set({});
  EXPECT_TRUE(h_->StagingFull());
  EXPECT_EQ(h_->receiver_counters().staging_slots_quarantined, 0u);
}

TEST_F(PairTest, AWireThatCannotProveQuiescenceIsReportedOncePerSide) {
  TransferOptions options = ImpatientOptions();
  options.quiescence_limit = milliseconds(100);
  Start(options);
  StartTransfer(1);
  AwaitChunks(3);
  {
    ScopedFault fault(faults_, {.hide_quiescence = true});
    h_->network().CutAll(absl::UnavailableError("test"));
    EXPECT_TRUE(Eventually([&] { return h_->unquiescent().size() == 2; }));
    Pause(milliseconds(150));
    EXPECT_EQ(h_->unquiescent().size(), 2u);
    EXPECT_THAT(h_->unquiescent()[0], HasSubstr("quiescence_limit"));
  }
  ExpectUsable(2);
}

TEST(PairDeathTest, TheDefaultIsToEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        TransferSetup setup;
        auto wire = MakeLocalWire();
        setup.wire = wire.get();
        CompleteSetup(setup).on_unquiescent("test");
      },
      ::testing::ExitedWithCode(kUnquiescentExitCode), "ends rather than reuse");
}

// Several pairs.

TEST_F(PairTest, TwoPeersThatVanishAtOnceLeaveTheThirdAtWork) {
  // PD-11, without a GPU: three prefill workers, chunks moving on all, two links cut at once.
  for (int round = 0; round < 20; ++round) {
    const size_t threads_before = CountDirectory("/proc/self/task");
    std::vector<std::unique_ptr<ScriptedSender>> others;
    for (uint64_t i = 0; i < 2; ++i) {
      others.push_back(std::make_unique<ScriptedSender>(h_.get()));
      SenderHello hello = GoodSenderHello();
      hello.sender_instance_id = 0xA000 + i;
      ASSERT_TRUE(others[i]->Open(hello));
      const uint64_t id = 1000 + 10 * static_cast<uint64_t>(round) + i;
      blocks_.push_back(std::make_unique<TestBlocks>(1, 4096, id));
      ASSERT_TRUE(h_->Expect(TransferId(id), blocks_.back().get()).ok());
      ChunkReady ready;
      ready.transfer_id = TransferId(id);
      ready.ranges = {{7, 0, 4096}};
      ready.total_bytes = 4096;
      others[i]->Say(ready);
      ASSERT_TRUE(others[i]->Next<ChunkGo>().has_value());
    }
    others.clear();  // Both in mid-chunk: GO was said, nothing was sent.
    const TimePoint start = Clock::Real()->Now();
    ExpectUsable(static_cast<uint64_t>(round) + 1);
    EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(10));
    for (uint64_t i = 0; i < 2; ++i) {
      ExpectFailedAtReceiver(1000 + 10 * static_cast<uint64_t>(round) + i);
    }
    EXPECT_TRUE(h_->StagingFull());
    if (round > 0) {
      EXPECT_TRUE(Eventually([&] { return CountDirectory("/proc/self/task") <= threads_before; }));
    }
  }
}

TEST_F(PairTest, TheIdlePairGoesForANewOneAndABusyOneDoesNot) {
  TransferOptions options = TestOptions();
  options.pairs_max = 1;
  Start(options);
  const auto begin_elsewhere = [&](uint64_t id) {
    return h_->sender().Begin(TransferId(id), kTestModel, {"d:2", 5}, kNever, &h_->at_sender());
  };
  ExpectUsable(1);
  ASSERT_TRUE(begin_elsewhere(2).ok());
  ASSERT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(2)));
  EXPECT_EQ(h_->at_sender().events(TransferId(2)).status.code(), absl::StatusCode::kUnavailable)
      << "nobody listens there, but it was dialled";
  StartTransfer(3);
  AwaitChunks(3);
  ASSERT_TRUE(begin_elsewhere(4).ok());
  ASSERT_TRUE(h_->at_sender().AwaitQuiescent(TransferId(4)));
  EXPECT_EQ(h_->at_sender().events(TransferId(4)).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(h_->at_sender().events(TransferId(3)).quiescent, 0);
}

TEST_F(PairTest, APeerThatTakesNoChunksDoesNotStarveTheOthers) {
  TransferOptions options = TestOptions();
  options.heartbeat_limit = std::chrono::seconds(60);
  options.chunk_limit = std::chrono::seconds(60);
  Start(options);
  // A decode worker whose answers never come, but which is alive.
  ScriptedPeer stuck;
  h_->network().Listen("d:2",
                       [&](std::shared_ptr<ControlLink> link) { stuck.Attach(std::move(link)); });
  TestBlocks wanted(10, 10000, 1);
  ASSERT_TRUE(
      h_->sender().Begin(TransferId(1), kTestModel, {"d:2", 5}, kNever, &h_->at_sender()).ok());
  h_->sender().Push(TransferId(1), wanted.AllRanges());
  ASSERT_TRUE(stuck.Next<SenderHello>().has_value());
  auto offer = h_->wire().Offer(kBound, [](absl::StatusOr<std::unique_ptr<WireEnd>>) {});
  ReceiverHello hello;
  hello.receiver_instance_id = 5;
  hello.wire_address = offer->address;
  hello.wire_token = offer->token;
  hello.staging_slot_bytes = 4096;
  stuck.Say(hello);
  ASSERT_TRUE(stuck.Next<ChunkReady>().has_value());
  ExpectDelivered(2);
  h_->sender().Cancel(TransferId(1));
}

}  // namespace
}  // namespace baton::kvtransfer
