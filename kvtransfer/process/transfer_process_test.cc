// Two real processes over the TCP wire and, on a machine with two GPUs, over the NCCL wire. The
// child is killed or stopped at random points while its transfers run; the parent must notice
// within the heartbeat limit, end every transfer quiet, get all staging slots back, receive no late
// byte, and work with the next child at once.
//
// BATON_PROCESS_ROUNDS sets how often each is done.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "kvtransfer/process/message_codec.h"
#include "kvtransfer/process/socket_link.h"
#include "kvtransfer/process/test_worker.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/transfer_harness.h"

extern char** environ;

namespace baton::kvtransfer {
namespace {

// A kill is seen at once by the closed sockets, a stop after heartbeat_limit; a loaded machine may
// take longer than that, a hang would take for ever.
constexpr Duration kNoticeBound = std::chrono::seconds(10);

// Beside this program, wherever both were put.
std::string WorkerProgram() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (here / "kvtransfer_test_worker").string();
}

// A child that is killed with its owner.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int pipe_fds[2];
    CHECK_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    out_ = UniqueFd(pipe_fds[0]);
    UniqueFd in(pipe_fds[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
    arguments.insert(arguments.begin(), WorkerProgram());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    CHECK_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() { End(); }

  // Its first line.
  std::string ReadLine() {
    std::string line;
    for (char c; read(out_.get(), &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
  }
  void Signal(int signal) { kill(pid_, signal); }
  void End() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    int status;
    waitpid(pid_, &status, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd out_;
};

int Rounds(int otherwise) {
  const char* text = std::getenv("BATON_PROCESS_ROUNDS");
  return text == nullptr ? otherwise : std::atoi(text);
}

// D's engine, which confirms at once, so that the child's leases end.
class ConfirmingObserver : public RecordingObserver {
 public:
  void OnReceived(TransferId id, const std::string& payload, const TransferStats& stats) override {
    RecordingObserver::OnReceived(id, payload, stats);
    receiver_->ConfirmProgress(id);
  }
  void set_receiver(TransferReceiver* receiver) { receiver_ = receiver; }

 private:
  TransferReceiver* receiver_ = nullptr;
};

// The parameter: which wire.
class ProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "nccl") {
      const std::string why_not = WhyNoNcclPair();
      if (!why_not.empty()) GTEST_SKIP() << why_not;
    }
    SetLogLevel(LogLevel::kError);
    wire_ = MakeWorkerWire(GetParam(), 0);
    Start();
  }
  void TearDown() override {
    if (wire_ == nullptr) return;
    Stop();
    wire_->Shutdown();
    SetLogLevel(LogLevel::kInfo);
  }
  virtual void Start() = 0;
  virtual void Stop() = 0;

  std::unique_ptr<Wire> wire_;
  ConfirmingObserver observer_;
  std::mt19937_64 rng_{17};
};

// The parent is D; the child, P, pushes without pause.
class SenderDiesTest : public ProcessTest {
 protected:
  static constexpr uint64_t kInstance = 99;
  static constexpr uint64_t kTransfers = 24;

  void Start() override {
    setup_ = WorkerSetup(kInstance, wire_.get());
    receiver_ = MakeTransferReceiver(setup_);
    observer_.set_receiver(receiver_.get());
    auto listener = SocketListener::Create(
        [this](std::shared_ptr<ControlLink> link) { receiver_->AcceptLink(std::move(link)); });
    CHECK(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  void Stop() override {
    listener_.reset();
    receiver_->Shutdown();
    receiver_.reset();
  }

  // One round: the child gets `signal` when some chunks have arrived.
  void Round(uint64_t first, int signal) {
    std::vector<std::unique_ptr<WorkerBlocks>> blocks;
    for (uint64_t i = 0; i < kTransfers; ++i) {
      blocks.push_back(std::make_unique<WorkerBlocks>(TransferId(first + i)));
      ASSERT_TRUE(receiver_
                      ->Expect(TransferId(first + i), kWorkerModel, blocks[i]->Destinations(),
                               kNever, &observer_)
                      .ok());
    }
    Child child(
        {GetParam(), "sender", listener_->address(), absl::StrCat(kInstance), absl::StrCat(first)});
    ASSERT_EQ(child.ReadLine(), "ready");
    const uint64_t chunks = setup_.counters->chunks + 1 + rng_() % 400;
    ASSERT_TRUE(Eventually([&] { return setup_.counters->chunks >= chunks; }));
    child.Signal(signal);
    const TimePoint start = Clock::Real()->Now();
    ASSERT_TRUE(Eventually([&] { return setup_.counters->pairs == 0; }, kNoticeBound));
    EXPECT_LT(Clock::Real()->Now() - start, kNoticeBound);
    ASSERT_TRUE(Eventually(
        [&] { return setup_.counters->staging_slots_free == setup_.options.staging_slots; }));
    // What the child had not named yet still waits; the engine gives it up.
    for (uint64_t i = 0; i < kTransfers; ++i) receiver_->Cancel(TransferId(first + i));
    for (uint64_t i = 0; i < kTransfers; ++i) {
      const TransferId id(first + i);
      ASSERT_TRUE(observer_.AwaitQuiescent(id)) << i;
      if (observer_.events(id).delivered == 1) {
        EXPECT_TRUE(blocks[i]->Equal()) << i;
      }
      blocks[i]->Poison();
    }
    // A stopped child that goes on finds its sockets shut: nothing of it arrives any more.
    child.Signal(SIGCONT);
    Pause(std::chrono::milliseconds(signal == SIGSTOP ? 50 : 0));
    for (uint64_t i = 0; i < kTransfers; ++i) EXPECT_TRUE(blocks[i]->Poisoned()) << i;
  }

  TransferSetup setup_;
  std::unique_ptr<LinkedTransferReceiver> receiver_;
  std::unique_ptr<SocketListener> listener_;
};

TEST_P(SenderDiesTest, KilledSendersLeaveNothingBehind) {
  for (int round = 0; round < Rounds(25); ++round) {
    SCOPED_TRACE(round);
    Round(static_cast<uint64_t>(round) * 1000, SIGKILL);
    if (HasFailure()) return;
  }
}

TEST_P(SenderDiesTest, StoppedSendersAreNoticedAndWriteNothingLater) {
  for (int round = 0; round < Rounds(10); ++round) {
    SCOPED_TRACE(round);
    Round(static_cast<uint64_t>(round) * 1000, SIGSTOP);
    if (HasFailure()) return;
  }
}

// The parent is P; the child, D, receives.
class ReceiverDiesTest : public ProcessTest {
 protected:
  void Start() override {
    setup_ = WorkerSetup(7, wire_.get());
    sender_ = MakeTransferSender(setup_, &dialer_);
  }
  void Stop() override {
    sender_->Shutdown();
    sender_.reset();
  }

  void Round(uint64_t first, int signal) {
    Child child({GetParam(), "receiver", absl::StrCat(first + 1), absl::StrCat(first)});
    const PeerAddress peer{child.ReadLine(), first + 1};
    std::vector<std::unique_ptr<WorkerBlocks>> blocks;
    const uint64_t chunks = setup_.counters->chunks + 1 + rng_() % 400;
    uint64_t begun = 0;
    // Pushes until enough has been delivered, a few transfers at a time.
    ASSERT_TRUE(Eventually([&] {
      if (setup_.counters->chunks >= chunks) return true;
      if (begun < 64 && setup_.counters->transfers < 8) {
        const TransferId id(first + begun++);
        blocks.push_back(std::make_unique<WorkerBlocks>(id));
        EXPECT_TRUE(sender_->Begin(id, kWorkerModel, peer, kNever, &observer_).ok());
        sender_->Push(id, blocks.back()->Sources());
        sender_->Finish(id, "payload");
      }
      return begun == 64;
    })) << begun
        << " begun, " << setup_.counters->transfers << " open, " << setup_.counters->chunks
        << " chunks, " << setup_.counters->pairs << " pairs";
    child.Signal(signal);
    ASSERT_TRUE(Eventually([&] { return setup_.counters->pairs == 0; }, kNoticeBound));
    ASSERT_TRUE(Eventually(
        [&] { return setup_.counters->staging_slots_free == setup_.options.staging_slots; }));
    // Leases of what was delivered run out by themselves (lease_limit is 2 s).
    for (uint64_t i = 0; i < begun; ++i) {
      ASSERT_TRUE(observer_.AwaitQuiescent(TransferId(first + i))) << i;
    }
    EXPECT_EQ(setup_.counters->leases, 0u);
  }

  TransferSetup setup_;
  SocketDialer dialer_;
  std::unique_ptr<TransferSender> sender_;
};

TEST_P(ReceiverDiesTest, KilledReceiversLeaveNothingBehind) {
  for (int round = 0; round < Rounds(10); ++round) {
    SCOPED_TRACE(round);
    Round(static_cast<uint64_t>(round) * 1000, SIGKILL);
    if (HasFailure()) return;
  }
}

TEST_P(ReceiverDiesTest, StoppedReceiversAreNoticed) {
  for (int round = 0; round < Rounds(10); ++round) {
    SCOPED_TRACE(round);
    Round(static_cast<uint64_t>(round) * 1000, SIGSTOP);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, SenderDiesTest, ::testing::Values("tcp", "nccl"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Wires, ReceiverDiesTest, ::testing::Values("tcp", "nccl"),
                         [](const auto& info) { return info.param; });

TEST(MessageCodec, MessagesSurviveAndMutilatedOnesAreRefusedOrDiffer) {
  const std::vector<ControlMessage> messages = {
      SenderHello{1, 2, 3, {"a=b", "c=d"}, "tcp"},
      ChunkReady{TransferId(1), 2, {{3, 4, 5}, {6, 7, 8}}, 9, 10},
      TransferFinal{TransferId(1), 2, "payload"},
      TransferAbort{TransferId(1), "reason"},
      ReceiverHello{1, 2, "refusal", "address", "token", 3},
      ChunkGo{1},
      ChunkDone{1, 2},
      ChunkDrop{1},
      TransferFailed{TransferId(1), "reason"},
      LeaseRenew{{TransferId(1), TransferId(2)}},
      LeaseRelease{TransferId(1)},
      LinkHeartbeat{1}};
  for (const ControlMessage& message : messages) {
    const std::string bytes = EncodeControlMessage(message);
    const auto decoded = DecodeControlMessage(bytes);
    ASSERT_TRUE(decoded.has_value()) << message.index();
    EXPECT_EQ(EncodeControlMessage(*decoded), bytes);
    EXPECT_FALSE(DecodeControlMessage(bytes + "x").has_value());
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeControlMessage(absl::string_view(bytes).substr(0, size)).has_value());
    }
  }
}

}  // namespace
}  // namespace baton::kvtransfer
