// How two ends agree on NCCL or TCP, whatever fails in between; and that communicators change only
// when no graph is being captured.
#include <sys/socket.h>

#include <string>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvtransfer/nccl/fake_communicator.h"
#include "kvtransfer/nccl/nccl_plugin.h"
#include "kvtransfer/nccl/nccl_wire.h"
#include "kvtransfer/nccl/pair_frames.h"
#include "kvtransfer/nccl/pair_opening.h"
#include "kvtransfer/wire_logs.h"

namespace baton::kvtransfer {
namespace {

using ::testing::HasSubstr;

// One process of a pair.
struct Side {
  explicit Side(std::shared_ptr<FakeNccl> nccl, uint8_t gpu, uint32_t version = 1, int max = 4)
      : communicators(MakeFakeCommunicators(std::move(nccl), gpu, version)), budget(max) {}
  ~Side() {
    for (auto* owned : {&failed, &communicator}) {
      if (*owned == nullptr) continue;
      if (!(*owned)->ending()) (*owned)->BeginEnd(true, [] {});
      CHECK(Eventually([&] { return (*owned)->Quiet(); }));
    }
  }
  void Open(PairRole role, int fd, Duration limit = kBound) {
    auto opened = OpenPair({.communicators = communicators.get(), .budget = &budget, .gate = &gate},
                           role, fd, Clock::Real()->Now() + limit, &failed);
    status = opened.status();
    if (!opened.ok()) return;
    communicator = std::move(opened->communicator);
    why_tcp = opened->why_tcp;
  }

  std::unique_ptr<PairCommunicators> communicators;
  CommunicatorBudget budget;
  CaptureGate gate;
  absl::Status status;
  std::string why_tcp;
  std::unique_ptr<OwnedCommunicator> communicator;
  std::unique_ptr<OwnedCommunicator> failed;
};

class PairOpeningTest : public ::testing::Test {
 protected:
  PairOpeningTest() {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    p_socket_ = UniqueFd(fds[0]);
    d_socket_ = UniqueFd(fds[1]);
  }
  void OpenBoth(Side& p, Side& d, Duration limit = kBound) {
    std::thread other([&] { d.Open(PairRole::kReceiver, d_socket_.get(), limit); });
    p.Open(PairRole::kSender, p_socket_.get(), limit);
    other.join();
  }
  void ExpectTcp(const Side& p, const Side& d, const std::string& why_p, const std::string& why_d) {
    EXPECT_TRUE(p.status.ok()) << p.status;
    EXPECT_TRUE(d.status.ok()) << d.status;
    EXPECT_EQ(p.communicator, nullptr);
    EXPECT_EQ(d.communicator, nullptr);
    EXPECT_THAT(p.why_tcp, HasSubstr(why_p));
    EXPECT_THAT(d.why_tcp, HasSubstr(why_d));
  }

  const std::shared_ptr<FakeNccl> nccl_ = std::make_shared<FakeNccl>();
  UniqueFd p_socket_, d_socket_;
};

TEST_F(PairOpeningTest, TwoGpusGetACommunicator) {
  Side p(nccl_, 1), d(nccl_, 2);
  nccl_->Set({.make_time = std::chrono::milliseconds(20)});
  OpenBoth(p, d);
  EXPECT_NE(p.communicator, nullptr) << p.status << p.why_tcp;
  EXPECT_NE(d.communicator, nullptr) << d.status << d.why_tcp;
}

TEST_F(PairOpeningTest, NeverUsesNcclBetweenTwoProcessesOnOneGpu) {
  Side p(nccl_, 1), d(nccl_, 1);
  OpenBoth(p, d);
  ExpectTcp(p, d, "same GPU", "same GPU");
  EXPECT_EQ(nccl_->counts().made, 0);
}

TEST_F(PairOpeningTest, UsesNcclOnOneGpuWhereTheLibraryAcceptsThat) {
  nccl_->Set({.accepts_shared_device = true});
  Side p(nccl_, 1), d(nccl_, 1);
  OpenBoth(p, d);
  EXPECT_NE(p.communicator, nullptr) << p.status << p.why_tcp;
  EXPECT_NE(d.communicator, nullptr) << d.status << d.why_tcp;
}

TEST_F(PairOpeningTest, TwoVersionsOfTheLibraryDoNotMeet) {
  Side p(nccl_, 1, 22809), d(nccl_, 2, 22807);
  OpenBoth(p, d);
  ExpectTcp(p, d, "versions", "versions");
}

TEST_F(PairOpeningTest, GoesOverTcpWhenEitherHasNoRoom) {
  Side p(nccl_, 1, 1, 1), d(nccl_, 2, 1, 1);
  const auto taken_d = d.budget.Acquire(Duration::zero());
  OpenBoth(p, d);
  ExpectTcp(p, d, "as many communicators", "as many communicators");
  const auto taken_p = p.budget.Acquire(Duration::zero());
  ASSERT_NE(taken_p, nullptr) << "what was taken for a pair that uses TCP comes back";
  OpenBoth(p, d);
  ExpectTcp(p, d, "as many communicators", "as many communicators");
}

TEST_F(PairOpeningTest, GoesOverTcpWhenBothHalvesFail) {
  nccl_->Set({.make_fails = true});
  Side p(nccl_, 1), d(nccl_, 2);
  OpenBoth(p, d);
  ExpectTcp(p, d, "cannot make it", "cannot make it");
}

TEST_F(PairOpeningTest, GoesOverTcpWhenOneHalfFailsAndAbortsTheOther) {
  auto other_nccl = std::make_shared<FakeNccl>();
  other_nccl->Set({.make_fails = true});
  Side p(nccl_, 1), d(other_nccl, 2);
  OpenBoth(p, d);
  ExpectTcp(p, d, "peer could not make", "cannot make");
  ASSERT_NE(p.failed, nullptr);
  EXPECT_TRUE(Eventually([&] { return p.failed->Quiet(); }));
  EXPECT_EQ(nccl_->counts().aborted, 1);
}

TEST_F(PairOpeningTest, ACommunicatorThatIsNeverMadeIsGivenUpInTime) {
  nccl_->Set({.never_made = true});
  Side p(nccl_, 1), d(nccl_, 2);
  OpenBoth(p, d, std::chrono::milliseconds(100));
  // Whoever gives up first tells the other.
  ExpectTcp(p, d, "ma", "ma");
  EXPECT_TRUE(Eventually([&] { return nccl_->counts().aborted == 2; }));
}

TEST_F(PairOpeningTest, APeerThatLeavesEndsTheOpening) {
  nccl_->Set({.never_made = true});
  Side p(nccl_, 1), d(nccl_, 2);
  std::thread other([&] { d.Open(PairRole::kReceiver, d_socket_.get()); });
  std::thread leaving([&] {
    EXPECT_TRUE(Eventually([&] { return nccl_->counts().made == 2; }));
    shutdown(p_socket_.get(), SHUT_RDWR);
  });
  p.Open(PairRole::kSender, p_socket_.get());
  other.join();
  leaving.join();
  EXPECT_EQ(p.status.code(), absl::StatusCode::kUnavailable) << p.status;
  EXPECT_EQ(d.status.code(), absl::StatusCode::kUnavailable) << d.status;
}

TEST_F(PairOpeningTest, RefusesWhatIsNoOpening) {
  Side d(nccl_, 2);
  PairOpeningBytes bytes = EncodePairOpening({.num_ctas = 8});
  bytes[0] = std::byte{'X'};
  ASSERT_TRUE(WriteAll(p_socket_.get(), bytes, Clock::Real()->Now() + kBound).ok());
  d.Open(PairRole::kReceiver, d_socket_.get());
  EXPECT_EQ(d.status.code(), absl::StatusCode::kDataLoss) << d.status;
}

TEST_F(PairOpeningTest, MakesAndAbortsOnlyWhileNoGraphIsCaptured) {
  Side p(nccl_, 1), d(nccl_, 2);
  ASSERT_TRUE(p.gate.TryBeginCapture());
  std::thread opening([&] { OpenBoth(p, d); });
  EXPECT_TRUE(Eventually([&] { return nccl_->counts().made == 1; }));
  while (p.gate.TryBeginCapture()) p.gate.EndCapture();  // Until the opening waits.
  EXPECT_EQ(nccl_->counts().made, 1) << "D's half alone";
  p.gate.EndCapture();
  opening.join();
  ASSERT_NE(p.communicator, nullptr) << p.status << p.why_tcp;

  ASSERT_TRUE(p.gate.TryBeginCapture());
  p.communicator->BeginEnd(false, [] {});
  while (p.gate.TryBeginCapture()) p.gate.EndCapture();
  EXPECT_FALSE(p.communicator->Quiet());
  EXPECT_EQ(nccl_->counts().aborted, 0);
  p.gate.EndCapture();
  EXPECT_TRUE(Eventually([&] { return p.communicator->Quiet(); }));
  EXPECT_EQ(nccl_->counts().aborted, 1);
  EXPECT_TRUE(Eventually([&] {
    const bool free = p.gate.TryBeginCapture();
    if (free) p.gate.EndCapture();
    return free;
  }));
}

TEST(PairFrames, SurviveAndMutilatedOnesAreRefused) {
  const auto opening = DecodePairOpening(
      EncodePairOpening({.num_ctas = 8, .library_version = 22809, .device_uuid = {std::byte{7}}}));
  ASSERT_TRUE(opening.ok());
  EXPECT_EQ(opening->num_ctas, 8u);
  EXPECT_EQ(opening->library_version, 22809u);
  EXPECT_EQ(opening->device_uuid[0], std::byte{7});
  PairId id{};
  id[127] = std::byte{9};
  const auto answer = DecodePairAnswer(
      EncodePairAnswer({.verdict = PairVerdict::kSameDevice, .num_ctas = 4, .id = id}));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->verdict, PairVerdict::kSameDevice);
  EXPECT_EQ(answer->num_ctas, 4u);
  EXPECT_EQ(answer->id, id);
  EXPECT_TRUE(*DecodePairOutcome(EncodePairOutcome(true)));
  EXPECT_FALSE(*DecodePairOutcome(EncodePairOutcome(false)));
  const PairFrameBytes frame = EncodePairFrame(
      {.kind = PairFrame::Kind::kSendPosted, .sequence_number = 1ull << 40, .length = 77});
  EXPECT_EQ(DecodePairFrame(frame)->sequence_number, 1ull << 40);
  EXPECT_EQ(DecodePairFrame(frame)->length, 77u);
  for (size_t i = 0; i < 8; ++i) {
    PairFrameBytes mutilated = frame;
    mutilated[i] ^= std::byte{0xF0};
    EXPECT_EQ(DecodePairFrame(mutilated).status().code(), absl::StatusCode::kDataLoss) << i;
  }
  for (uint16_t v = 0; v <= kPairVerdictMax; ++v) {
    EXPECT_NE(PairVerdictText(static_cast<PairVerdict>(v)), "unknown");
  }
}

TEST(NcclWireNames, ForcedPairsFailInsteadOfFallingBack) {
  const auto nccl = std::make_shared<FakeNccl>();
  NcclWireOptions options{.fall_back = false};
  auto d = MakeNcclWire(options, MakeFakeCommunicators(nccl, 1), nullptr);
  options.listens = false;
  auto p = MakeNcclWire(options, MakeFakeCommunicators(nccl, 1), nullptr);
  ASSERT_TRUE(d.ok() && p.ok());
  EXPECT_EQ((*d)->name(), "nccl");
  AcceptLog accepted;
  auto offer = (*d)->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  const auto end = (*p)->Connect(*offer, kBound);
  EXPECT_EQ(end.status().code(), absl::StatusCode::kFailedPrecondition) << end.status();
  EXPECT_THAT(std::string(end.status().message()), HasSubstr("same GPU"));
  ASSERT_TRUE(accepted.Await());
  EXPECT_EQ(accepted.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*p)->Offer(kBound, accepted.Callback()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  (*p)->Shutdown();
  (*d)->Shutdown();
}

// A peer that has no plug-in or no GPU has a plain TCP wire; either side may be that one.
TEST(NcclWireNames, MeetsPlainTcpWiresInBothDirections) {
  const auto nccl = std::make_shared<FakeNccl>();
  auto flexible = MakeNcclWire({}, MakeFakeCommunicators(nccl, 1), nullptr);
  auto plain = MakeTcpWire({});
  ASSERT_TRUE(flexible.ok() && plain.ok());
  EXPECT_EQ((*flexible)->name(), "auto");
  const std::pair<Wire*, Wire*> directions[] = {{flexible->get(), plain->get()},
                                                {plain->get(), flexible->get()}};
  for (const auto& [d, p] : directions) {
    AcceptLog accepted;
    auto offer = d->Offer(kBound, accepted.Callback());
    ASSERT_TRUE(offer.ok());
    auto sender = p->Connect(*offer, kBound);
    ASSERT_TRUE(sender.ok()) << sender.status();
    ASSERT_TRUE(accepted.Await());
    auto receiver = accepted.Take();
    ASSERT_NE(receiver, nullptr) << accepted.status();
    EXPECT_EQ((*sender)->piece_bytes_max(),
              p == flexible->get() ? uint64_t{4} << 20 : kWireOperationBytesMax)
        << "through the host in small pieces, whatever the slots";
    CompletionLog sent, received;
    const std::vector<std::byte> source = PatternBytes(100000, 1);
    std::vector<std::byte> sink(source.size());
    receiver->PostReceive(0, absl::MakeSpan(sink), received.Next());
    (*sender)->PostSend(0, source, sent.Next());
    ASSERT_TRUE(received.Await(1) && sent.Await(1));
    EXPECT_EQ(source, sink);
  }
  EXPECT_EQ(nccl->counts().made, 0);
  (*flexible)->Shutdown();
  (*plain)->Shutdown();
}

TEST(NcclWireOptionsTest, RefusesImpossibleValues) {
  const auto nccl = std::make_shared<FakeNccl>();
  for (const NcclWireOptions& options :
       {NcclWireOptions{.num_ctas = 0}, NcclWireOptions{.num_ctas = 65},
        NcclWireOptions{.communicators_max = 0}, NcclWireOptions{.communicators_max = 17}}) {
    EXPECT_EQ(MakeNcclWire(options, MakeFakeCommunicators(nccl, 1), nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  // What was measured, in MB, and not less.
  EXPECT_GE(PairCommunicatorBytes(4), 71'000'000);
  EXPECT_GE(PairCommunicatorBytes(8), 138'000'000);
  EXPECT_GE(PairCommunicatorBytes(16), 273'000'000);
}

TEST(NcclPluginTest, NamesTheFoldersOfAMissingPlugin) {
  const auto plugin = LoadNcclPluginAt("libm.so.6");
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()), HasSubstr(kNcclPluginEntry));
}

}  // namespace
}  // namespace baton::kvtransfer
