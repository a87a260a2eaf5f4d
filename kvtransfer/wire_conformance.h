// The suite that every wire passes: include it in the wire's test and instantiate
//
//   INSTANTIATE_TEST_SUITE_P(Local, WireConformanceTest,
//                            ::testing::Values(WireFactory{"local", [] { return MakeLocalWire();
//                            }}), WireFactoryName);
//
// Method: one Wire object plays both processes. Every wait has a bound (kBound), so that a wire
// which hangs fails instead of blocking the run.
#ifndef BATON_KVTRANSFER_WIRE_CONFORMANCE_H_
#define BATON_KVTRANSFER_WIRE_CONFORMANCE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "kvtransfer/test_support.h"
#include "kvtransfer/wire.h"
#include "kvtransfer/wire_logs.h"

namespace baton::kvtransfer {

struct WireFactory {
  std::string name;
  std::function<std::unique_ptr<Wire>()> make;
  std::string skip_reason = "";  // Not empty: this machine cannot make it, and why.
};

inline std::string WireFactoryName(const ::testing::TestParamInfo<WireFactory>& info) {
  return info.param.name;
}
inline void PrintTo(const WireFactory& factory, std::ostream* os) { *os << factory.name; }

// From Abort to Quiescent.
inline constexpr Duration kAbortBound = std::chrono::seconds(5);

class WireConformanceTest : public ::testing::TestWithParam<WireFactory> {
 protected:
  struct Pair {
    std::unique_ptr<WireEnd> sender;
    std::unique_ptr<WireEnd> receiver;
  };

  void SetUp() override {
    if (!GetParam().skip_reason.empty()) GTEST_SKIP() << GetParam().skip_reason;
    wire_ = GetParam().make();
  }
  void TearDown() override {
    if (wire_ != nullptr) wire_->Shutdown();
  }

  Pair Connected() {
    AcceptLog accepted;
    auto offer = wire_->Offer(kBound, accepted.Callback());
    EXPECT_TRUE(offer.ok()) << offer.status();
    if (!offer.ok()) return {};
    auto sender = wire_->Connect(*offer, kBound);
    EXPECT_TRUE(sender.ok()) << sender.status();
    EXPECT_TRUE(accepted.Await());
    EXPECT_TRUE(accepted.status().ok()) << accepted.status();
    if (!sender.ok()) return {};
    return {*std::move(sender), accepted.Take()};
  }

  std::unique_ptr<Wire> wire_;
};

TEST_P(WireConformanceTest, DeliversInOrderWithTheSequenceNumbersPosted) {
  Pair pair = Connected();
  CompletionLog sent, received;
  std::vector<std::vector<std::byte>> sources, sinks;
  const std::vector<uint64_t> sequence_numbers = {0, 1, 5, 6, uint64_t{1} << 40};
  for (size_t i = 0; i < sequence_numbers.size(); ++i) {
    sources.push_back(PatternBytes(1000 + i, i));
    sinks.emplace_back(1000 + i);
  }
  for (size_t i = 0; i < sequence_numbers.size(); ++i) {
    pair.receiver->PostReceive(sequence_numbers[i], absl::MakeSpan(sinks[i]), received.Next());
    pair.sender->PostSend(sequence_numbers[i], sources[i], sent.Next());
  }
  ASSERT_TRUE(received.Await(sequence_numbers.size()));
  ASSERT_TRUE(sent.Await(sequence_numbers.size()));
  for (const absl::Status& s : received.statuses()) EXPECT_TRUE(s.ok()) << s;
  for (const absl::Status& s : sent.statuses()) EXPECT_TRUE(s.ok()) << s;
  EXPECT_EQ(sources, sinks);
  EXPECT_TRUE(received.InOrder());
  EXPECT_TRUE(sent.InOrder());
  EXPECT_TRUE(Eventually([&] { return pair.sender->Quiescent() && pair.receiver->Quiescent(); }));
}

TEST_P(WireConformanceTest, CarriesEverySizeFromZeroToASlot) {
  Pair pair = Connected();
  uint64_t sequence_number = 0;
  for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{65537},
                      (size_t{1} << 20) + 1, size_t{4} << 20}) {
    CompletionLog sent, received;
    const std::vector<std::byte> source = PatternBytes(size, size);
    std::vector<std::byte> sink(size);
    pair.receiver->PostReceive(sequence_number, absl::MakeSpan(sink), received.Next());
    pair.sender->PostSend(sequence_number, source, sent.Next());
    ASSERT_TRUE(received.Await(1) && sent.Await(1)) << size;
    EXPECT_TRUE(received.statuses()[0].ok()) << size << ": " << received.statuses()[0];
    EXPECT_TRUE(sent.statuses()[0].ok()) << size << ": " << sent.statuses()[0];
    EXPECT_EQ(source, sink) << size;
    ++sequence_number;
  }
}

TEST_P(WireConformanceTest, KeepsManyOperationsInFlight) {
  Pair pair = Connected();
  constexpr size_t kCount = 300;
  CompletionLog sent, received;
  std::vector<std::vector<std::byte>> sources, sinks;
  for (size_t i = 0; i < kCount; ++i) {
    sources.push_back(PatternBytes(i * 37 % 5000, i));
    sinks.emplace_back(sources.back().size());
  }
  std::thread posting([&] {
    for (size_t i = 0; i < kCount; ++i) pair.sender->PostSend(i, sources[i], sent.Next());
  });
  for (size_t i = 0; i < kCount; ++i) {
    pair.receiver->PostReceive(i, absl::MakeSpan(sinks[i]), received.Next());
  }
  posting.join();
  ASSERT_TRUE(received.Await(kCount) && sent.Await(kCount));
  for (const absl::Status& s : received.statuses()) ASSERT_TRUE(s.ok()) << s;
  EXPECT_TRUE(received.InOrder());
  EXPECT_EQ(sources, sinks);
}

TEST_P(WireConformanceTest, TakesSendsBeforeTheirReceivesArePosted) {
  Pair pair = Connected();
  CompletionLog sent, received;
  const std::vector<std::byte> source = PatternBytes(1 << 20, 1);
  std::vector<std::byte> sink(source.size());
  pair.sender->PostSend(0, source, sent.Next());
  Pause(std::chrono::milliseconds(20));
  EXPECT_EQ(received.size(), 0u);
  pair.receiver->PostReceive(0, absl::MakeSpan(sink), received.Next());
  ASSERT_TRUE(received.Await(1) && sent.Await(1));
  EXPECT_TRUE(received.statuses()[0].ok()) << received.statuses()[0];
  EXPECT_EQ(source, sink);
}

TEST_P(WireConformanceTest, ReportsAWrongSequenceNumberAsDataLossAndStaysBroken) {
  CompletionLog sent, received;
  const std::vector<std::byte> source = PatternBytes(100, 1);
  std::vector<std::byte> sink(100, std::byte{0xEE}), second(100, std::byte{0xEE});
  Pair pair = Connected();
  pair.receiver->PostReceive(4, absl::MakeSpan(sink), received.Next());
  pair.sender->PostSend(5, source, sent.Next());
  ASSERT_TRUE(received.Await(1));
  EXPECT_EQ(received.statuses()[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(sink, std::vector<std::byte>(100, std::byte{0xEE})) << "checked before it is stored";
  pair.receiver->PostReceive(6, absl::MakeSpan(second), received.Next());
  pair.sender->PostSend(6, source, sent.Next());
  ASSERT_TRUE(received.Await(2));
  EXPECT_FALSE(received.statuses()[1].ok());
  EXPECT_EQ(second, std::vector<std::byte>(100, std::byte{0xEE}));
}

TEST_P(WireConformanceTest, ReportsAWrongLengthAsDataLossAndWritesNothing) {
  for (size_t posted : {size_t{99}, size_t{101}, size_t{0}}) {
    CompletionLog sent, received;
    const std::vector<std::byte> source = PatternBytes(100, 1);
    std::vector<std::byte> sink(posted, std::byte{0xEE});
    Pair pair = Connected();
    pair.receiver->PostReceive(0, absl::MakeSpan(sink), received.Next());
    pair.sender->PostSend(0, source, sent.Next());
    ASSERT_TRUE(received.Await(1)) << posted;
    EXPECT_EQ(received.statuses()[0].code(), absl::StatusCode::kDataLoss) << posted;
    EXPECT_EQ(sink, std::vector<std::byte>(posted, std::byte{0xEE}));
  }
}

TEST_P(WireConformanceTest, RefusesTheDirectionAnEndDoesNotHave) {
  // A pair each: a refused operation breaks its end, and the peer may see that first.
  Pair first = Connected();
  Pair second = Connected();
  CompletionLog log;
  std::vector<std::byte> buffer(10);
  first.sender->PostReceive(0, absl::MakeSpan(buffer), log.Next());
  second.receiver->PostSend(0, buffer, log.Next());
  ASSERT_TRUE(log.Await(2));
  for (const absl::Status& s : log.statuses()) {
    EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition) << s;
  }
}

TEST_P(WireConformanceTest, AbortCancelsPostedReceivesInBoundedTime) {
  Pair pair = Connected();
  CompletionLog received;
  std::vector<std::vector<std::byte>> sinks(20, std::vector<std::byte>(5000));
  for (size_t i = 0; i < sinks.size(); ++i) {
    pair.receiver->PostReceive(i, absl::MakeSpan(sinks[i]), received.Next());
  }
  EXPECT_FALSE(pair.receiver->Quiescent());
  pair.receiver->Abort(absl::CancelledError("test"));
  pair.receiver->Abort(absl::CancelledError("again"));
  ASSERT_TRUE(Eventually([&] { return pair.receiver->Quiescent(); }, kAbortBound));
  ASSERT_EQ(received.size(), sinks.size());
  for (const absl::Status& s : received.statuses()) {
    EXPECT_EQ(s.code(), absl::StatusCode::kCancelled) << s;
  }
  EXPECT_TRUE(received.InOrder());
  pair.receiver->PostReceive(99, absl::MakeSpan(sinks[0]), received.Next());
  ASSERT_TRUE(received.Await(sinks.size() + 1));
  EXPECT_FALSE(received.statuses().back().ok()) << "operations after an abort fail too";
}

TEST_P(WireConformanceTest, AbortCancelsPostedSendsInBoundedTime) {
  Pair pair = Connected();
  CompletionLog sent;
  // More than any buffer in between takes, so the sends cannot all complete.
  const std::vector<std::byte> source = PatternBytes(16 << 20, 1);
  for (size_t i = 0; i < 8; ++i) pair.sender->PostSend(i, source, sent.Next());
  EXPECT_FALSE(pair.sender->Quiescent());
  pair.sender->Abort(absl::CancelledError("test"));
  ASSERT_TRUE(Eventually([&] { return pair.sender->Quiescent(); }, kAbortBound));
  ASSERT_EQ(sent.size(), 8u);
  EXPECT_EQ(sent.statuses().back().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(sent.InOrder());
}

TEST_P(WireConformanceTest, EndsReceivesWithUnavailableWhenTheSenderIsDestroyed) {
  Pair pair = Connected();
  CompletionLog received;
  std::vector<std::byte> sink(5000);
  for (size_t i = 0; i < 3; ++i) {
    pair.receiver->PostReceive(i, absl::MakeSpan(sink), received.Next());
  }
  pair.sender.reset();
  ASSERT_TRUE(received.Await(3));
  for (const absl::Status& s : received.statuses()) {
    EXPECT_EQ(s.code(), absl::StatusCode::kUnavailable) << s;
  }
  EXPECT_TRUE(Eventually([&] { return pair.receiver->Quiescent(); }));
}

TEST_P(WireConformanceTest, EndsSendsWithUnavailableWhenTheReceiverIsDestroyed) {
  Pair pair = Connected();
  CompletionLog sent;
  const std::vector<std::byte> source = PatternBytes(16 << 20, 1);
  for (size_t i = 0; i < 4; ++i) pair.sender->PostSend(i, source, sent.Next());
  pair.receiver.reset();
  ASSERT_TRUE(sent.Await(4));
  EXPECT_EQ(sent.statuses().back().code(), absl::StatusCode::kUnavailable)
      << sent.statuses().back();
  EXPECT_TRUE(Eventually([&] { return pair.sender->Quiescent(); }));
}

TEST_P(WireConformanceTest, WritesNothingIntoAReceiveBufferAfterItsCompletion) {
  for (int round = 0; round < 20; ++round) {
    CompletionLog sent, received;
    const std::vector<std::byte> source = PatternBytes(8 << 20, 1);
    std::vector<std::byte> sink(source.size());
    Pair pair = Connected();
    pair.receiver->PostReceive(0, absl::MakeSpan(sink), received.Next());
    pair.receiver->PostReceive(1, absl::MakeSpan(sink), received.Next());
    pair.sender->PostSend(0, source, sent.Next());
    pair.sender->PostSend(1, source, sent.Next());
    Pause(std::chrono::microseconds(round * 300));
    WireEnd* aborting = round % 2 == 0 ? pair.receiver.get() : pair.sender.get();
    aborting->Abort(absl::CancelledError("test"));
    ASSERT_TRUE(Eventually([&] { return pair.receiver->Quiescent(); }, kAbortBound));
    ASSERT_EQ(received.size(), 2u);
    std::fill(sink.begin(), sink.end(), std::byte{0xA5});
    Pause(std::chrono::milliseconds(3));
    EXPECT_TRUE(
        std::all_of(sink.begin(), sink.end(), [](std::byte b) { return b == std::byte{0xA5}; }))
        << "round " << round;
    ASSERT_TRUE(Eventually([&] { return pair.sender->Quiescent(); }, kAbortBound));
  }
}

TEST_P(WireConformanceTest, ReportsAnOfferThatNobodyTakesAsDeadlineExceeded) {
  AcceptLog accepted;
  auto offer = wire_->Offer(std::chrono::milliseconds(50), accepted.Callback());
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_TRUE(accepted.Await());
  EXPECT_EQ(accepted.status().code(), absl::StatusCode::kDeadlineExceeded) << accepted.status();
  EXPECT_FALSE(wire_->Connect(*offer, std::chrono::seconds(1)).ok());
  wire_->Withdraw(*offer);
  EXPECT_EQ(accepted.calls(), 1);
}

TEST_P(WireConformanceTest, CancelsAWithdrawnOfferOnce) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok()) << offer.status();
  wire_->Withdraw(*offer);
  wire_->Withdraw(*offer);
  ASSERT_TRUE(accepted.Await());
  EXPECT_EQ(accepted.status().code(), absl::StatusCode::kCancelled) << accepted.status();
  EXPECT_FALSE(wire_->Connect(*offer, std::chrono::seconds(1)).ok());
  EXPECT_EQ(accepted.calls(), 1);
}

TEST_P(WireConformanceTest, RefusesAWrongTokenAndKeepsTheOffer) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok()) << offer.status();
  for (const std::string& token :
       {std::string(offer->token.size(), 'x'), std::string(), offer->token + "x",
        offer->token.substr(1), std::string(100000, 'y')}) {
    EXPECT_FALSE(wire_->Connect({offer->address, token}, std::chrono::seconds(1)).ok());
  }
  EXPECT_EQ(accepted.calls(), 0);
  auto end = wire_->Connect(*offer, kBound);
  EXPECT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(accepted.Await());
}

TEST_P(WireConformanceTest, AcceptsAnOfferOnlyOnce) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok()) << offer.status();
  auto first = wire_->Connect(*offer, kBound);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(wire_->Connect(*offer, std::chrono::seconds(1)).ok());
  ASSERT_TRUE(accepted.Await());
  EXPECT_EQ(accepted.calls(), 1);
}

TEST_P(WireConformanceTest, RefusesAddressesThatAreNotItsOwn) {
  for (const char* address : {"", "nonsense", "127.0.0.1", "127.0.0.1:notaport", ":::", "[::1"}) {
    EXPECT_FALSE(
        wire_->Connect({address, std::string(32, 't')}, std::chrono::milliseconds(200)).ok())
        << address;
  }
}

TEST_P(WireConformanceTest, LetsTheAcceptedCallbackDestroyTheEnd) {
  auto offer = wire_->Offer(kBound, [](absl::StatusOr<std::unique_ptr<WireEnd>> end) {});
  ASSERT_TRUE(offer.ok()) << offer.status();
  auto sender = wire_->Connect(*offer, kBound);
  if (!sender.ok()) return;  // The wire may notice already while connecting.
  CompletionLog sent;
  const std::vector<std::byte> source = PatternBytes(16 << 20, 1);
  (*sender)->PostSend(0, source, sent.Next());
  ASSERT_TRUE(sent.Await(1));
  EXPECT_FALSE(sent.statuses()[0].ok());
}

TEST_P(WireConformanceTest, ShutdownCancelsOpenOffersAndIsIdempotent) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok()) << offer.status();
  wire_->Shutdown();
  wire_->Shutdown();
  ASSERT_EQ(accepted.calls(), 1);
  EXPECT_EQ(accepted.status().code(), absl::StatusCode::kCancelled) << accepted.status();
  EXPECT_FALSE(wire_->Offer(kBound, accepted.Callback()).ok());
}

TEST_P(WireConformanceTest, KeepsPairsApartAndLetsOthersLiveWhenTwoAreAborted) {
  constexpr size_t kPairs = 6;
  std::vector<Pair> pairs;
  std::vector<CompletionLog> sent(kPairs), received(kPairs);
  std::vector<std::vector<std::byte>> sources, sinks;
  for (size_t i = 0; i < kPairs; ++i) {
    pairs.push_back(Connected());
    sources.push_back(PatternBytes(200000, i));
    sinks.emplace_back(200000);
  }
  for (size_t i = 0; i < kPairs; ++i) {
    pairs[i].receiver->PostReceive(0, absl::MakeSpan(sinks[i]), received[i].Next());
  }
  pairs[1].receiver->Abort(absl::CancelledError("test"));
  pairs[2].sender->Abort(absl::CancelledError("test"));
  for (size_t i = 0; i < kPairs; ++i) pairs[i].sender->PostSend(0, sources[i], sent[i].Next());
  for (size_t i = 0; i < kPairs; ++i) {
    ASSERT_TRUE(received[i].Await(1)) << i;
    ASSERT_TRUE(sent[i].Await(1)) << i;
    EXPECT_EQ(received[i].statuses()[0].ok(), i != 1 && i != 2) << i;
    if (i != 1 && i != 2) {
      EXPECT_EQ(sources[i], sinks[i]) << i;
    }
  }
}

TEST_P(WireConformanceTest, GivesBackAllThreadsAndFileDescriptors) {
  wire_->Shutdown();
  wire_.reset();
  const size_t threads_before = CountDirectory("/proc/self/task");
  const size_t fds_before = CountDirectory("/proc/self/fd");
  for (int round = 0; round < 5; ++round) {
    wire_ = GetParam().make();
    AcceptLog never;
    auto unused = wire_->Offer(kBound, never.Callback());
    {
      Pair kept = Connected();
      Pair aborted = Connected();
      CompletionLog received;
      std::vector<std::byte> sink(100);
      aborted.receiver->PostReceive(0, absl::MakeSpan(sink), received.Next());
      aborted.receiver->Abort(absl::CancelledError("test"));
      EXPECT_FALSE(wire_->Connect({unused->address, "wrong"}, std::chrono::seconds(1)).ok());
    }
    wire_->Shutdown();
    wire_.reset();
  }
  // A joined thread may stay in /proc for a moment.
  EXPECT_TRUE(Eventually([&] { return CountDirectory("/proc/self/task") <= threads_before; }));
  EXPECT_LE(CountDirectory("/proc/self/fd"), fds_before);
}

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_CONFORMANCE_H_
