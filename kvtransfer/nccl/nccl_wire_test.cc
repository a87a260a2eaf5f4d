// The NCCL wire over fakes passes the suite of all wires, whether its pairs use NCCL or had to fall
// back; and keeps what it promises about aborting, quarantine and what is launched when.
#include "kvtransfer/nccl/nccl_wire.h"

#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/nccl/fake_communicator.h"
#include "kvtransfer/wire_conformance.h"

namespace baton::kvtransfer {

NcclWireOptions ManyPairs() { return {.num_ctas = 2, .communicators_max = 64}; }

std::unique_ptr<Wire> NewNcclWire() {
  return MakeFakeNcclWire(std::make_shared<FakeNccl>(), ManyPairs());
}
// As slow as the real thing.
std::unique_ptr<Wire> NewSlowNcclWire() {
  auto nccl = std::make_shared<FakeNccl>();
  nccl->Set({.make_time = std::chrono::milliseconds(5),
             .launch_time = std::chrono::microseconds(50),
             .operation_time = std::chrono::microseconds(100),
             .abort_time = std::chrono::milliseconds(50),
             .linger_time = std::chrono::milliseconds(20)});
  return MakeFakeNcclWire(nccl, ManyPairs());
}
// Both on GPU 2: TCP through buffers.
std::unique_ptr<Wire> NewFallenBackWire() {
  return MakeFakeNcclWire(std::make_shared<FakeNccl>(), ManyPairs(), 2);
}

INSTANTIATE_TEST_SUITE_P(Nccl, WireConformanceTest,
                         ::testing::Values(WireFactory{"nccl", NewNcclWire},
                                           WireFactory{"nccl_slow", NewSlowNcclWire},
                                           WireFactory{"nccl_over_tcp", NewFallenBackWire}),
                         WireFactoryName);

namespace {

class NcclWireTest : public ::testing::Test {
 protected:
  void TearDown() override {
    sender_.reset();
    receiver_.reset();
    if (wire_ != nullptr) wire_->Shutdown();
    wire_.reset();
    EXPECT_EQ(nccl_->counts().live, 0) << "a communicator was left behind";
  }

  void Connect(NcclWireOptions options = ManyPairs()) {
    wire_ = MakeFakeNcclWire(nccl_, std::move(options));
    Reconnect();
  }
  void Reconnect() {
    AcceptLog accepted;
    auto offer = wire_->Offer(kBound, accepted.Callback());
    ASSERT_TRUE(offer.ok()) << offer.status();
    auto sender = wire_->Connect(*offer, kBound);
    ASSERT_TRUE(sender.ok()) << sender.status();
    ASSERT_TRUE(accepted.Await());
    ASSERT_TRUE(accepted.status().ok()) << accepted.status();
    sender_ = *std::move(sender);
    receiver_ = accepted.Take();
  }
  // Posts one chunk on both sides.
  void PostBoth(uint64_t sequence_number) {
    receiver_->PostReceive(sequence_number, absl::MakeSpan(sink_), received_.Next());
    sender_->PostSend(sequence_number, source_, sent_.Next());
  }

  const std::shared_ptr<FakeNccl> nccl_ = std::make_shared<FakeNccl>();
  std::unique_ptr<Wire> wire_;
  std::unique_ptr<WireEnd> sender_;
  std::unique_ptr<WireEnd> receiver_;
  CompletionLog sent_, received_;
  const std::vector<std::byte> source_ = PatternBytes(1 << 20, 3);
  std::vector<std::byte> sink_ = std::vector<std::byte>(1 << 20);
};

TEST_F(NcclWireTest, ASpinningKernelIsAbortedAndItsMemoryStaysInQuarantineUntilItIsQuiet) {
  Connect();
  nccl_->Set({.operations_spin = true,
              .abort_time = std::chrono::milliseconds(100),
              .linger_time = std::chrono::milliseconds(100)});
  PostBoth(0);
  Pause(std::chrono::milliseconds(20));
  EXPECT_EQ(received_.size(), 0u);
  const TimePoint start = Clock::Real()->Now();
  receiver_->Abort(absl::CancelledError("test"));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::milliseconds(50)) << "Abort never blocks";
  EXPECT_FALSE(receiver_->Quiescent());
  ASSERT_TRUE(received_.Await(1));
  EXPECT_GE(Clock::Real()->Now() - start, std::chrono::milliseconds(200));
  EXPECT_EQ(received_.statuses()[0].code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(Eventually([&] { return receiver_->Quiescent(); }));
  // The kernel wrote until it was quiet (the fake does); not any more.
  std::fill(sink_.begin(), sink_.end(), std::byte{0xA5});
  Pause(std::chrono::milliseconds(10));
  EXPECT_EQ(sink_, std::vector<std::byte>(sink_.size(), std::byte{0xA5}));
  ASSERT_TRUE(sent_.Await(1)) << "the peer hears of it without a heartbeat";
}

TEST_F(NcclWireTest, NothingIsLaunchedBeforeBothSidesHavePosted) {
  Connect();
  nccl_->Set({.operations_spin = true});
  sender_->PostSend(0, source_, sent_.Next());
  Pause(std::chrono::milliseconds(20));
  // Otherwise it would take an abort, and the fake would count it.
  sender_->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(sent_.Await(1));
  ASSERT_TRUE(Eventually([&] { return nccl_->counts().live == 0; }));
  EXPECT_EQ(nccl_->counts().destroyed, 2);
  EXPECT_EQ(nccl_->counts().aborted, 0);
}

TEST_F(NcclWireTest, AnEndThatIsIdleIsQuiescentAtOnceHoweverLongAbortsTake) {
  Connect();
  PostBoth(0);
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  nccl_->Set({.abort_time = std::chrono::milliseconds(300)});
  const TimePoint start = Clock::Real()->Now();
  sender_->Abort(absl::CancelledError("idle"));
  EXPECT_TRUE(Eventually([&] { return sender_->Quiescent(); }, std::chrono::milliseconds(100)));
  sender_.reset();
  receiver_.reset();
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::milliseconds(250))
      << "the communicator goes behind its end";
}

TEST_F(NcclWireTest, ASendToAPeerThatHasAbortedMayComplete) {
  Connect();
  nccl_->Set({.operations_spin = true});
  PostBoth(0);
  Pause(std::chrono::milliseconds(10));
  receiver_->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  EXPECT_FALSE(received_.statuses()[0].ok());
  // Either way: the wire promises nothing about a send. But the pair is broken.
  sender_->PostSend(1, source_, sent_.Next());
  ASSERT_TRUE(sent_.Await(2));
  EXPECT_EQ(sent_.statuses()[1].code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclWireTest, AFailedCommunicatorBreaksTheEnd) {
  Connect();
  nccl_->Set({.fails_after = 1});
  PostBoth(0);
  PostBoth(1);
  ASSERT_TRUE(received_.Await(2) && sent_.Await(2));
  EXPECT_EQ(received_.statuses()[1].code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Eventually([&] { return sender_->Quiescent() && receiver_->Quiescent(); }));
}

TEST_F(NcclWireTest, OnALostGpuAnEndWithALaunchedOperationNeverSaysThatItIsQuiescent) {
  Connect();
  nccl_->Set({.operations_spin = true, .gpu_lost = true});
  PostBoth(0);
  Pause(std::chrono::milliseconds(10));
  receiver_->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(Eventually([&] { return nccl_->counts().aborted == 2; }));
  Pause(std::chrono::milliseconds(20));
  EXPECT_FALSE(receiver_->Quiescent());
  EXPECT_FALSE(sender_->Quiescent());
  EXPECT_EQ(received_.size() + sent_.size(), 0u);
  nccl_->Set({});  // Otherwise the process would end here.
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
}

TEST_F(NcclWireTest, OnALostGpuAnIdleEndGoes) {
  Connect();
  nccl_->Set({.gpu_lost = true});
  sender_.reset();
  receiver_.reset();
  wire_->Shutdown();
}

TEST_F(NcclWireTest, ABrokenPairIsMadeAnew) {
  Connect({.communicators_max = 1});
  nccl_->Set({.operations_spin = true, .abort_time = std::chrono::milliseconds(200)});
  PostBoth(0);
  Pause(std::chrono::milliseconds(10));
  sender_->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  nccl_->Set({});
  Reconnect();
  PostBoth(1);
  ASSERT_TRUE(received_.Await(2) && sent_.Await(2));
  EXPECT_TRUE(received_.statuses()[1].ok()) << received_.statuses()[1];
  EXPECT_EQ(source_, sink_);
  EXPECT_EQ(nccl_->counts().made, 4) << "over NCCL again: it waited for the old one to go";
  EXPECT_LE(nccl_->counts().live_max, 2) << "one at each side";
}

TEST_F(NcclWireTest, MorePairsThanCommunicatorsGoOverTcp) {
  Connect({.communicators_max = 1});
  auto first_sender = std::move(sender_);
  auto first_receiver = std::move(receiver_);
  Reconnect();
  EXPECT_EQ(nccl_->counts().made, 2);
  PostBoth(0);
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  EXPECT_EQ(source_, sink_);
}

TEST_F(NcclWireTest, ShutdownEndsAnOpeningThatHangs) {
  nccl_->Set({.never_made = true});
  wire_ = MakeFakeNcclWire(nccl_, ManyPairs());
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  const auto sender = wire_->Connect(*offer, std::chrono::milliseconds(200));
  EXPECT_TRUE(sender.ok()) << "over TCP: " << sender.status();
}

}  // namespace
}  // namespace baton::kvtransfer
