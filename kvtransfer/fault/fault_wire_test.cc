// Without faults the decorator passes the suite of all wires, over local and tcp; each fault does
// what its comment says.
#include "kvtransfer/fault/fault_wire.h"

#include <bit>

#include "common/base/check.h"
#include "kvtransfer/local/local_wire.h"
#include "kvtransfer/tcp/tcp_wire.h"
#include "kvtransfer/wire_conformance.h"

namespace baton::kvtransfer {

std::unique_ptr<Wire> FaultlessLocal() {
  return MakeFaultWire(MakeLocalWire(), std::make_shared<FaultController>(1));
}

std::unique_ptr<Wire> FaultlessTcp() {
  auto tcp = MakeTcpWire({});
  CHECK(tcp.ok()) << tcp.status();
  return MakeFaultWire(*std::move(tcp), std::make_shared<FaultController>(1));
}

std::unique_ptr<Wire> DelayedLocal() {
  auto faults = std::make_shared<FaultController>(1);
  faults->Set({.delay = std::chrono::milliseconds(1)});
  return MakeFaultWire(MakeLocalWire(), faults);
}

INSTANTIATE_TEST_SUITE_P(Fault, WireConformanceTest,
                         ::testing::Values(WireFactory{"fault_over_local", FaultlessLocal},
                                           WireFactory{"fault_over_tcp", FaultlessTcp},
                                           WireFactory{"delay_over_local", DelayedLocal}),
                         WireFactoryName);

namespace {

class FaultWireTest : public ::testing::Test {
 protected:
  void SetUp() override { Connect(); }
  void TearDown() override {
    sender_.reset();
    receiver_.reset();
    wire_->Shutdown();
  }
  void Connect() {
    AcceptLog accepted;
    auto offer = wire_->Offer(kBound, accepted.Callback());
    ASSERT_TRUE(offer.ok());
    auto sender = wire_->Connect(*offer, kBound);
    ASSERT_TRUE(sender.ok());
    ASSERT_TRUE(accepted.Await());
    sender_ = *std::move(sender);
    receiver_ = accepted.Take();
  }
  // Moves `bytes` once.
  void Move(uint64_t sequence_number, size_t bytes) {
    source_ = PatternBytes(bytes, sequence_number);
    sink_.assign(bytes, std::byte{0});
    receiver_->PostReceive(sequence_number, absl::MakeSpan(sink_), received_.Next());
    sender_->PostSend(sequence_number, source_, sent_.Next());
  }

  std::shared_ptr<FaultController> faults_ = std::make_shared<FaultController>(7);
  std::unique_ptr<Wire> wire_ = MakeFaultWire(MakeLocalWire(), faults_);
  std::vector<std::byte> source_, sink_;
  CompletionLog sent_, received_;
  std::unique_ptr<WireEnd> sender_, receiver_;
};

TEST_F(FaultWireTest, DelaysEveryOperation) {
  ScopedFault fault(faults_, {.delay = std::chrono::milliseconds(50)});
  const TimePoint start = Clock::Real()->Now();
  Move(0, 100);
  ASSERT_TRUE(received_.Await(1));
  EXPECT_GE(Clock::Real()->Now() - start, std::chrono::milliseconds(50));
  EXPECT_TRUE(received_.statuses()[0].ok());
  EXPECT_EQ(source_, sink_);
}

TEST_F(FaultWireTest, CutsTheConnectionAfterSoManyBytes) {
  ScopedFault fault(faults_, {.cut_after_bytes = 150});
  Move(0, 100);
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  EXPECT_TRUE(received_.statuses()[0].ok()) << received_.statuses()[0];
  Move(1, 100);
  ASSERT_TRUE(received_.Await(2) && sent_.Await(2));
  EXPECT_EQ(received_.statuses()[1].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sent_.statuses()[1].code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultWireTest, FlipsOneBitOfTheByteAtThePositionAsked) {
  ScopedFault fault(faults_, {.corrupt_after_bytes = 130});
  Move(0, 100);
  ASSERT_TRUE(received_.Await(1));
  EXPECT_EQ(source_, sink_);
  Move(1, 100);
  ASSERT_TRUE(received_.Await(2));
  EXPECT_TRUE(received_.statuses()[1].ok()) << "the wire itself does not notice";
  for (size_t i = 0; i < 100; ++i) {
    const int flipped_bits = std::popcount(std::to_integer<uint8_t>(source_[i] ^ sink_[i]));
    EXPECT_EQ(flipped_bits, i == 30 ? 1 : 0) << i;
  }
}

TEST_F(FaultWireTest, RefusesToConnectAndToOffer) {
  AcceptLog accepted;
  {
    ScopedFault fault(faults_, {.refuse_offer = true});
    EXPECT_EQ(wire_->Offer(kBound, accepted.Callback()).status().code(),
              absl::StatusCode::kUnavailable);
  }
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok()) << "the fault has left its scope";
  ScopedFault fault(faults_, {.refuse_connect = true});
  EXPECT_EQ(wire_->Connect(*offer, kBound).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FaultWireTest, FailsEveryKthOperation) {
  ScopedFault fault(faults_, {.fail_every = 3});
  Move(0, 100);
  ASSERT_TRUE(received_.Await(1) && sent_.Await(1));
  EXPECT_TRUE(received_.statuses()[0].ok() && sent_.statuses()[0].ok());
  Move(1, 100);
  ASSERT_TRUE(received_.Await(2) && sent_.Await(2));
  EXPECT_FALSE(received_.statuses()[1].ok());
  EXPECT_FALSE(sent_.statuses()[1].ok());
}

TEST_F(FaultWireTest, StallsUntilTheEndIsAborted) {
  ScopedFault fault(faults_, {.stall = true});
  Move(0, 100);
  Pause(std::chrono::milliseconds(30));
  EXPECT_EQ(received_.size(), 0u);
  EXPECT_FALSE(receiver_->Quiescent());
  receiver_->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(Eventually([&] { return receiver_->Quiescent(); }, kAbortBound));
  EXPECT_EQ(received_.statuses()[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(FaultWireTest, HidesQuiescence) {
  EXPECT_TRUE(receiver_->Quiescent());
  ScopedFault fault(faults_, {.hide_quiescence = true});
  EXPECT_FALSE(receiver_->Quiescent());
}

}  // namespace
}  // namespace baton::kvtransfer
