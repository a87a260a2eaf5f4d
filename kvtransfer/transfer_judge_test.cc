// How each side judges a peer that breaks the protocol: the transfer or the pair fails with a
// reason, nothing is written outside what was granted, and everybody else's transfers go on.
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kv_copy/kv_copy.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/scripted_peer.h"
#include "kvtransfer/transfer_harness.h"

namespace baton::kvtransfer {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlock0 = 7;  // Logical names that TestBlocks gives.
constexpr uint32_t kBlock1 = 10;

// D against a prefill worker that breaks the rules.
class JudgeSenderTest : public ::testing::Test {
 protected:
  JudgeSenderTest() : blocks_(2, 1000, 1), h_(MakeLocalWire()), p_(&h_) {}
  ~JudgeSenderTest() override { EXPECT_TRUE(blocks_.GuardsIntact()); }

  void SetUp() override {
    ASSERT_TRUE(p_.Open());
    ASSERT_TRUE(h_.Expect(id_, &blocks_).ok());
  }
  ChunkReady Ready(std::vector<BlockRange> ranges, uint64_t total_bytes) {
    ChunkReady ready;
    ready.transfer_id = id_;
    ready.sequence_number = next_++;
    ready.ranges = std::move(ranges);
    ready.total_bytes = total_bytes;
    payload_.assign(total_bytes < 5000 ? total_bytes : 0, std::byte{0x11});
    ready.checksum = kernels::KvChecksum(payload_);
    return ready;
  }
  // Announces and sends a chunk like an honest sender.
  void Send(std::vector<BlockRange> ranges, uint64_t total_bytes) {
    const ChunkReady ready = Ready(std::move(ranges), total_bytes);
    p_.Say(ready);
    const auto go = p_.Next<ChunkGo>();
    ASSERT_TRUE(go.has_value());
    EXPECT_EQ(go->sequence_number, ready.sequence_number);
    Post(ready.sequence_number);
  }
  void Post(uint64_t sequence_number) {
    std::atomic<bool> sent{false};
    p_.end().PostSend(sequence_number, payload_, [&](const absl::Status&) { sent = true; });
    ASSERT_TRUE(Eventually([&] { return sent.load(); }));
  }
  // The transfer has failed at D with a reason that contains `text`, and P was told the same.
  void ExpectTransferFailed(const std::string& text) {
    ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
    const TransferEvents e = h_.at_receiver().events(id_);
    EXPECT_EQ(e.failed, 1);
    EXPECT_THAT(std::string(e.status.message()), HasSubstr(text));
    const auto told = p_.Next<TransferFailed>();
    ASSERT_TRUE(told.has_value());
    EXPECT_THAT(told->reason, HasSubstr(text));
    EXPECT_FALSE(p_.closed()) << "one bad transfer costs no pair";
    EXPECT_TRUE(h_.StagingFull());
  }
  void ExpectPairFailed(const std::string& text) {
    EXPECT_TRUE(p_.AwaitClosed());
    ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
    EXPECT_THAT(std::string(h_.at_receiver().events(id_).status.message()), HasSubstr(text));
    EXPECT_TRUE(h_.StagingFull());
  }
  // Another, honest transfer on the same pair still goes through.
  void ExpectPairUsable() {
    TestBlocks other(1, 500, 2);
    id_ = TransferId(id_.value + 100);
    ASSERT_TRUE(h_.Expect(id_, &other).ok());
    Send({{kBlock0, 0, 500}}, 500);
    p_.Say(TransferFinal{id_, 1, "ok"});
    ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
    EXPECT_EQ(h_.at_receiver().events(id_).payload, "ok");
  }

  TestBlocks blocks_;
  TransferHarness h_;
  ScriptedSender p_;
  TransferId id_{5};
  uint64_t next_ = 0;
  std::vector<std::byte> payload_;
};

TEST_F(JudgeSenderTest, AcceptsAnHonestTransfer) {
  Send({{kBlock1, 0, 1000}}, 1000);
  const auto done = p_.Next<ChunkDone>();
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->checksum, kernels::KvChecksum(payload_));
  Send({{kBlock0, 0, 1000}}, 1000);
  p_.Say(TransferFinal{id_, 2, "x"});
  ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
  EXPECT_EQ(h_.at_receiver().events(id_).delivered, 1);
  const auto renew = p_.Next<LeaseRenew>();
  ASSERT_TRUE(renew.has_value());
  EXPECT_EQ(renew->transfer_ids, std::vector<TransferId>{id_});
  h_.receiver().ConfirmProgress(id_);
  EXPECT_TRUE(p_.Next<LeaseRelease>().has_value());
}

TEST_F(JudgeSenderTest, FailsTheTransferForRangesOutsideWhatWasGranted) {
  const uint64_t huge = ~uint64_t{0};
  const std::vector<std::pair<BlockRange, uint64_t>> bad = {
      {{8, 0, 100}, 100},          // A block that was not granted.
      {{kBlock0, 901, 100}, 100},  // Past the end.
      {{kBlock0, huge - 50, 100}, 100},
      {{kBlock0, 100, huge}, 100},
      {{kBlock0, 0, 0}, 0},     // Empty.
      {{kBlock0, 0, 100}, 99},  // Totals.
      {{kBlock0, 0, 100}, 101},
      {{kBlock0, 0, 100}, huge},
      {{kBlock0, 0, 100}, 4097},  // More than a staging slot.
  };
  for (const auto& [range, total] : bad) {
    const auto before = blocks_.Snapshot();
    p_.Say(Ready({range}, total));
    ExpectTransferFailed("");
    const auto drop = p_.Next<ChunkDrop>();
    ASSERT_TRUE(drop.has_value());
    EXPECT_EQ(drop->sequence_number, next_ - 1);
    EXPECT_EQ(blocks_.Snapshot(), before);
    id_ = TransferId(id_.value + 1);
    ASSERT_TRUE(h_.Expect(id_, &blocks_).ok());
  }
  EXPECT_EQ(p_.Count<ChunkGo>(), 0u);
  ExpectPairUsable();
}

TEST_F(JudgeSenderTest, FailsTheTransferWhenSeveralRangesSumBeyondTheTotal) {
  p_.Say(Ready({{kBlock0, 0, 1000}, {kBlock1, 0, 1000}}, 1999));
  ExpectTransferFailed("longer than");
}

TEST_F(JudgeSenderTest, FailsTheTransferForOverlappingRanges) {
  Send({{kBlock0, 0, 600}}, 600);
  p_.Say(Ready({{kBlock0, 599, 10}}, 10));
  ExpectTransferFailed("overlaps");
  ExpectPairUsable();
}

TEST_F(JudgeSenderTest, FailsTheTransferThatIsFinalWithAHole) {
  Send({{kBlock0, 0, 1000}, {kBlock1, 0, 999}}, 1999);
  p_.Say(TransferFinal{id_, 1, ""});
  ExpectTransferFailed("not covered");
  ExpectPairUsable();
}

TEST_F(JudgeSenderTest, FailsTheTransferWhoseFinalCountsWrong) {
  Send({{kBlock0, 0, 1000}, {kBlock1, 0, 1000}}, 2000);
  p_.Say(TransferFinal{id_, 2, ""});
  ExpectTransferFailed("counts 2 chunks, 1 were announced");
}

TEST_F(JudgeSenderTest, FailsTheTransferWithAnOversizedPayload) {
  Send({{kBlock0, 0, 1000}, {kBlock1, 0, 1000}}, 2000);
  p_.Say(TransferFinal{id_, 1, std::string(kTransferPayloadBytesMax + 1, 'x')});
  ExpectTransferFailed("payload");
}

TEST_F(JudgeSenderTest, FailsTheTransferForAChunkAfterItsFinal) {
  const ChunkReady all = Ready({{kBlock0, 0, 1000}, {kBlock1, 0, 1000}}, 2000);
  p_.Say(all);
  ASSERT_TRUE(p_.Next<ChunkGo>().has_value());
  p_.Say(TransferFinal{id_, 1, ""});
  p_.Say(Ready({{kBlock0, 0, 1}}, 1));
  ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
  EXPECT_THAT(std::string(h_.at_receiver().events(id_).status.message()),
              HasSubstr("after the final"));
  // GO was said for the first: it still arrives in its slot, and lands nowhere.
  const auto before = blocks_.Snapshot();
  payload_.assign(2000, std::byte{0x22});
  Post(all.sequence_number);
  EXPECT_TRUE(h_.StagingFull());
  EXPECT_EQ(blocks_.Snapshot(), before);
  ExpectPairUsable();
}

TEST_F(JudgeSenderTest, DropsChunksOfUnknownTransfersAndSaysWhy) {
  id_ = TransferId(999);
  p_.Say(Ready({{kBlock0, 0, 10}}, 10));
  const auto failed = p_.Next<TransferFailed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->transfer_id, TransferId(999));
  EXPECT_TRUE(p_.Next<ChunkDrop>().has_value()) << "the reason comes before the DROP";
  p_.Say(TransferFinal{id_, 0, ""});
  EXPECT_TRUE(p_.Next<TransferFailed>().has_value());
  ExpectPairUsable();
  id_ = TransferId(5);
}

TEST_F(JudgeSenderTest, KeepsATransferForTheSenderThatNamedItFirst) {
  Send({{kBlock0, 0, 1000}}, 1000);
  ScriptedSender thief(&h_);
  SenderHello hello = GoodSenderHello();
  hello.sender_instance_id = 0x666;
  ASSERT_TRUE(thief.Open(hello));
  ChunkReady ready = Ready({{kBlock1, 0, 1000}}, 1000);
  --next_;
  ready.sequence_number = 0;
  thief.Say(ready);
  const auto failed = thief.Next<TransferFailed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->reason, HasSubstr("another prefill worker"));
  thief.Say(TransferAbort{id_, "mine"});
  thief.Say(TransferFinal{id_, 1, ""});
  EXPECT_TRUE(thief.Next<TransferFailed>().has_value());
  Send({{kBlock1, 0, 1000}}, 1000);
  p_.Say(TransferFinal{id_, 2, "kept"});
  ASSERT_TRUE(h_.at_receiver().AwaitQuiescent(id_));
  EXPECT_EQ(h_.at_receiver().events(id_).payload, "kept");
}

TEST_F(JudgeSenderTest, RefusesATransferOfAModelTheSenderDoesNotHave) {
  h_.StartReceiver(kTestReceiverInstance, {{kTestModel, "layout-1"}, {"second", "layout-2"}});
  ScriptedSender p(&h_);
  ASSERT_TRUE(p.Open());
  ASSERT_TRUE(
      h_.receiver()
          .Expect(TransferId(50), "second", blocks_.Destinations(), kNever, &h_.at_receiver())
          .ok());
  p.Say(TransferFinal{TransferId(50), 0, ""});
  const auto failed = p.Next<TransferFailed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->reason, HasSubstr("'second'"));
}

TEST_F(JudgeSenderTest, FailsThePairForAGapInTheSequence) {
  Send({{kBlock0, 0, 10}}, 10);
  ++next_;
  p_.Say(Ready({{kBlock0, 10, 10}}, 10));
  ExpectPairFailed("chunk 1 is next");
}

TEST_F(JudgeSenderTest, FailsThePairForBytesThatAreNotThoseAnnounced) {
  ChunkReady ready = Ready({{kBlock0, 0, 1000}}, 1000);
  ready.checksum ^= 1;
  p_.Say(ready);
  ASSERT_TRUE(p_.Next<ChunkGo>().has_value());
  Post(0);
  ExpectPairFailed("checksum");
}

TEST_F(JudgeSenderTest, FailsThePairForMessagesOfTheWrongDirectionOrOrder) {
  Send({{kBlock0, 0, 10}}, 10);
  p_.Say(ChunkGo{0});
  ExpectPairFailed("wrong direction");
  ScriptedSender early(&h_);
  early.Say(TransferFinal{});
  EXPECT_TRUE(early.AwaitClosed());
  ScriptedSender twice(&h_);
  ASSERT_TRUE(twice.Open());
  twice.Say(GoodSenderHello());
  EXPECT_TRUE(twice.AwaitClosed());
}

TEST_F(JudgeSenderTest, FailsThePairThatAnnouncesTooMuch) {
  p_.Say(Ready(std::vector<BlockRange>(kChunkRangesMax + 1, {kBlock0, 0, 1}), 1));
  EXPECT_TRUE(p_.AwaitClosed());
}

TEST_F(JudgeSenderTest, CutsOffAPeerThatFloods) {
  // Far more than the core can handle while it is given them.
  for (int i = 0; i < 200000 && !p_.closed(); ++i) p_.Say(TransferFinal{TransferId(1000), 0, ""});
  // Whether it was cut off depends on speed; that the receiver lives and serves does not.
  h_.at_receiver();
  ScriptedSender other(&h_);
  SenderHello hello = GoodSenderHello();
  hello.sender_instance_id = 0x77;
  EXPECT_TRUE(other.Open(hello));
}

TEST_F(JudgeSenderTest, TheSenderIsToldOfACancelBeforeItsChunksAreDropped) {
  // All slots are taken by chunks that never arrive; the fourth waits for one.
  for (uint64_t i = 0; i < 4; ++i) p_.Say(Ready({{kBlock0, i * 10, 10}}, 10));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(p_.Next<ChunkGo>().has_value());
  h_.receiver().Cancel(id_);
  ASSERT_TRUE(p_.Next<LeaseRelease>().has_value());
  const auto drop = p_.Next<ChunkDrop>();
  ASSERT_TRUE(drop.has_value());
  EXPECT_EQ(drop->sequence_number, 3u);
  payload_.assign(10, std::byte{0x33});
  const auto before = blocks_.Snapshot();
  for (uint64_t i = 0; i < 3; ++i) Post(i);
  EXPECT_TRUE(h_.StagingFull());
  EXPECT_EQ(blocks_.Snapshot(), before);
}

// P against a decode worker that breaks the rules.
class JudgeReceiverTest : public ::testing::Test {
 protected:
  JudgeReceiverTest() : blocks_(1, 1000, 1), h_(MakeLocalWire()) {
    h_.network().Listen(kTestAddress,
                        [this](std::shared_ptr<ControlLink> link) { d_.Attach(std::move(link)); });
  }
  ~JudgeReceiverTest() override { end_.reset(); }

  // Begins a transfer and plays D up to its first READY.
  void SetUp() override {
    ASSERT_TRUE(h_.Begin(id_).ok());
    h_.sender().Push(id_, blocks_.AllRanges());
    h_.sender().Finish(id_, "payload");
    ASSERT_TRUE(Eventually([&] { return d_.attached(); }));
    hello_ = d_.Next<SenderHello>();
    ASSERT_TRUE(hello_.has_value());
  }
  void Open() {
    auto end = std::make_shared<std::unique_ptr<WireEnd>>();
    auto accepted = std::make_shared<std::atomic<bool>>(false);
    auto offer =
        h_.wire().Offer(kBound, [end, accepted](absl::StatusOr<std::unique_ptr<WireEnd>> e) {
          if (e.ok()) *end = *std::move(e);
          *accepted = true;
        });
    ASSERT_TRUE(offer.ok());
    ReceiverHello hello = GoodHello();
    hello.wire_address = offer->address;
    hello.wire_token = offer->token;
    d_.Say(hello);
    ASSERT_TRUE(Eventually([&] { return accepted->load(); }));
    end_ = std::move(*end);
    ready_ = d_.Next<ChunkReady>();
    ASSERT_TRUE(ready_.has_value());
  }
  static ReceiverHello GoodHello() {
    ReceiverHello hello;
    hello.receiver_instance_id = kTestReceiverInstance;
    hello.staging_slot_bytes = 4096;
    return hello;
  }
  void ExpectFailed(absl::StatusCode code, const std::string& text) {
    ASSERT_TRUE(h_.at_sender().AwaitQuiescent(id_));
    EXPECT_EQ(h_.at_sender().events(id_).status.code(), code);
    EXPECT_THAT(std::string(h_.at_sender().events(id_).status.message()), HasSubstr(text));
    EXPECT_TRUE(Eventually([&] { return h_.sender_counters().staging_slots_free == 4; }));
  }

  TestBlocks blocks_;
  TransferHarness h_;
  ScriptedPeer d_;
  TransferId id_{5};
  std::optional<SenderHello> hello_;
  std::optional<ChunkReady> ready_;
  std::unique_ptr<WireEnd> end_;
  std::vector<std::byte> sink_;

  void Receive() {
    sink_.assign(ready_->total_bytes, std::byte{0});
    std::atomic<bool> received{false};
    end_->PostReceive(0, absl::MakeSpan(sink_), [&](const absl::Status& s) {
      EXPECT_TRUE(s.ok()) << s;
      received = true;
    });
    d_.Say(ChunkGo{0});
    ASSERT_TRUE(Eventually([&] { return received.load(); }));
  }
};

TEST_F(JudgeReceiverTest, SaysHelloReadyAndFinalAndDeliversOnDoneAndRenewal) {
  EXPECT_EQ(hello_->protocol_version, kTransferProtocolVersion);
  EXPECT_EQ(hello_->sender_instance_id, kTestSenderInstance);
  EXPECT_EQ(hello_->kv_layouts, std::vector<std::string>{"m=layout-1"});
  EXPECT_EQ(hello_->wire, "local");
  Open();
  EXPECT_EQ(ready_->sequence_number, 0u);
  EXPECT_EQ(ready_->total_bytes, 1000u);
  const auto final = d_.Next<TransferFinal>();
  ASSERT_TRUE(final.has_value());
  EXPECT_EQ(final->num_chunks, 1u);
  EXPECT_EQ(final->payload, "payload");
  Receive();
  d_.Say(LeaseRenew{{id_}});  // Before DONE: no proof of anything.
  d_.Say(ChunkDone{0, ready_->checksum});
  Pause(std::chrono::milliseconds(20));
  EXPECT_EQ(h_.at_sender().events(id_).delivered, 0) << "the payload is not acknowledged yet";
  d_.Say(LeaseRenew{{id_}});
  EXPECT_TRUE(h_.at_sender().AwaitDelivered(id_));
  d_.Say(LeaseRelease{id_});
  EXPECT_TRUE(h_.at_sender().AwaitQuiescent(id_));
}

TEST_F(JudgeReceiverTest, ACompletedSendIsNoDelivery) {
  Open();
  Receive();
  Pause(std::chrono::milliseconds(20));
  EXPECT_EQ(h_.at_sender().events(id_).delivered, 0);
  EXPECT_EQ(h_.sender_counters().staging_slots_free, 4u) << "but the slot is free";
}

TEST_F(JudgeReceiverTest, FailsTheTransferWhenTheScatteredBytesDiffer) {
  Open();
  Receive();
  d_.Say(ChunkDone{0, ready_->checksum + 1});
  ExpectFailed(absl::StatusCode::kDataLoss, "checksum");
  EXPECT_TRUE(d_.Next<TransferAbort>().has_value());
  EXPECT_FALSE(d_.closed());
}

TEST_F(JudgeReceiverTest, FailsThePairForGoDoneOrDropOfWhatWasNotAnnounced) {
  Open();
  d_.Say(ChunkGo{1});
  ExpectFailed(absl::StatusCode::kInternal, "GO for chunk 1");
}

TEST_F(JudgeReceiverTest, FailsThePairForDoneWithoutGo) {
  Open();
  d_.Say(ChunkDone{0, ready_->checksum});
  ExpectFailed(absl::StatusCode::kInternal, "without GO");
}

TEST_F(JudgeReceiverTest, FailsThePairForDoneOfTheFuture) {
  Open();
  d_.Say(ChunkDone{77, 0});
  ExpectFailed(absl::StatusCode::kInternal, "DONE for chunk 77");
}

TEST_F(JudgeReceiverTest, FailsThePairForDropAfterGo) {
  Open();
  Receive();
  d_.Say(ChunkDrop{0});
  ExpectFailed(absl::StatusCode::kInternal, "DROP");
}

TEST_F(JudgeReceiverTest, FailsTheTransferThatIsDroppedWithoutAReason) {
  Open();
  d_.Say(ChunkDrop{0});
  ExpectFailed(absl::StatusCode::kAborted, "dropped");
  EXPECT_FALSE(d_.closed());
}

TEST_F(JudgeReceiverTest, FailsTheTransferWithTheReceiversReason) {
  Open();
  d_.Say(TransferFailed{id_, "no more blocks"});
  d_.Say(ChunkDrop{0});
  ExpectFailed(absl::StatusCode::kAborted, "no more blocks");
}

TEST_F(JudgeReceiverTest, SendsACancelledChunkIfGoComesAllTheSame) {
  Open();
  h_.sender().Cancel(id_);
  ASSERT_TRUE(h_.at_sender().AwaitQuiescent(id_));
  ASSERT_TRUE(d_.Next<TransferAbort>().has_value());
  Receive();  // GO crossed the abort: READY was a promise.
  EXPECT_TRUE(Eventually([&] { return h_.sender_counters().staging_slots_free == 4; }));
  EXPECT_FALSE(d_.closed());
}

TEST_F(JudgeReceiverTest, RefusesAnAnswerOfAnotherVersionInstanceOrWithoutStaging) {
  ReceiverHello hello = GoodHello();
  hello.protocol_version = 3;
  d_.Say(hello);
  ExpectFailed(absl::StatusCode::kFailedPrecondition, "version 1");
}

TEST_F(JudgeReceiverTest, FailsThePairForAnythingBeforeTheHello) {
  d_.Say(ChunkGo{0});
  ExpectFailed(absl::StatusCode::kInternal, "before its hello");
}

TEST_F(JudgeReceiverTest, FailsThePairWhoseWireCannotBeConnected) {
  ReceiverHello hello = GoodHello();
  hello.wire_address = "nowhere";
  d_.Say(hello);
  ExpectFailed(absl::StatusCode::kInvalidArgument, "connecting the wire");
}

TEST_F(JudgeReceiverTest, FailsThePairThatAnswersNeitherGoNorDropForACancelledChunk) {
  TransferOptions options = TestOptions();
  options.chunk_limit = std::chrono::milliseconds(50);
  TransferHarness h(MakeLocalWire(), options);
  ScriptedPeer d;
  h.network().Listen(kTestAddress,
                     [&](std::shared_ptr<ControlLink> link) { d.Attach(std::move(link)); });
  ASSERT_TRUE(h.Begin(id_).ok());
  h.sender().Push(id_, blocks_.AllRanges());
  ASSERT_TRUE(Eventually([&] { return d.attached(); }));
  auto end = std::make_shared<std::unique_ptr<WireEnd>>();
  auto offer = h.wire().Offer(kBound, [end](absl::StatusOr<std::unique_ptr<WireEnd>> e) {
    if (e.ok()) *end = *std::move(e);
  });
  ASSERT_TRUE(offer.ok());
  ReceiverHello hello = GoodHello();
  hello.wire_address = offer->address;
  hello.wire_token = offer->token;
  d.Say(hello);
  ASSERT_TRUE(d.Next<ChunkReady>().has_value());
  h.sender().Cancel(id_);
  EXPECT_TRUE(d.AwaitClosed());
  EXPECT_TRUE(Eventually([&] { return h.sender_counters().staging_slots_free == 4; }));
  end->reset();
}

}  // namespace
}  // namespace baton::kvtransfer
