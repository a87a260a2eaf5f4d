// Goal: what a decode loop takes and refuses, what it reserves, and what it says. Both workers
// together are in tests/sim. Method: turn by turn, with P played by the test; threads at the end.
#include "decode_worker/loop/decode_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/kvcache/handoff_payload.h"
#include "engine/runner/null_executor.h"
#include "engine/testing/scripted_executor.h"
#include "worker/loop/testing/collecting_sink.h"
#include "worker/loop/testing/fake_transfer.h"

namespace baton::decode_worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using worker::EndReason;
using worker::RouterSessionId;
using worker::SequenceKey;
using worker::StartMode;
using worker::StartSequence;

SequenceKey Key(uint64_t request, uint64_t session = 1) {
  return {RouterSessionId(session), RequestId(request), 0};
}

StartSequence Start(uint64_t request, int32_t num_tokens, uint32_t max_tokens, StartMode mode) {
  StartSequence start;
  start.key = Key(request);
  start.mode = mode;
  start.model = std::string("m");
  for (int32_t i = 0; i < num_tokens; ++i) start.token_ids.push_back(10 + i);
  start.num_prompt_tokens = static_cast<uint32_t>(num_tokens);
  start.max_tokens = max_tokens;
  start.transfer_id = TransferId(request);
  start.initial_credits = 1000;
  return start;
}

// P's side of the fake hand-over.
class PlayedPrefillWorker : public kvtransfer::TransferSenderObserver {
 public:
  void OnDelivered(TransferId id, const kvtransfer::TransferStats& stats) override { ++delivered; }
  void OnReleased(TransferId id) override { ++released; }
  void OnFailed(TransferId id, const absl::Status& status) override { failed = status; }
  void OnQuiescent(TransferId id) override { ++quiescent; }
  void OnPairFailed(const kvtransfer::PeerAddress& peer, const absl::Status& status) override {}

  int delivered = 0;
  int released = 0;
  int quiescent = 0;
  absl::Status failed;
};

class DecodeLoopTest : public testing::Test {
 protected:
  explicit DecodeLoopTest(bool with_receiver = true)
      : kv_(16, 4),
        executor_({.limits = {.tokens_max = 8, .sequences_max = 4, .context_tokens_max = 100},
                   .kv = kv_.memory()}) {
    DecodeLoopOptions options;
    options.loop.model = std::string("m");
    options.loop.kv = kv_.memory();
    options.loop.executor = &executor_;
    options.loop.sink = &sink_;
    options.loop.clock = &clock_;
    options.loop.limits.stop_limit = std::chrono::milliseconds(50);
    if (with_receiver) options.receiver = transfer_.receiver();
    loop_ = std::make_unique<DecodeLoop>(options);
  }
  ~DecodeLoopTest() override {
    transfer_.PumpDry();
    loop_->Stop();
    EXPECT_EQ(loop_->Audit().free, 16);
  }

  void Turns(int count) {
    for (int i = 0; i < count; ++i) loop_->Turn(Duration::zero());
  }
  absl::Status EndStatus(uint64_t request) {
    const auto end = sink_.EndOf(Key(request));
    return end.has_value() ? end->status : absl::UnknownError("not ended");
  }
  // P sends `num_blocks` blocks and the token behind them.
  void Send(uint64_t transfer, int32_t num_blocks, const HandoffPayload& payload) {
    source_.assign(num_blocks * kv_.memory().block_bytes, std::byte{1});
    const TransferId id(transfer);
    ASSERT_TRUE(transfer_.sender()->Begin(id, std::string("m"), {}, kNever, &prefill_).ok());
    for (int32_t i = 0; i < num_blocks; ++i) {
      transfer_.sender()->Push(id, {{.logical_block = static_cast<uint32_t>(i),
                                     .offset = 0,
                                     .bytes = absl::MakeConstSpan(source_).subspan(
                                         i * kv_.memory().block_bytes, kv_.memory().block_bytes)}});
    }
    transfer_.sender()->Finish(id, EncodeHandoffPayload(payload));
    transfer_.PumpDry();
  }

  FakeClock clock_;
  TestKvPool kv_;
  ScriptedExecutor executor_;
  worker::FakeTransfer transfer_{1};
  worker::CollectingSink sink_;
  PlayedPrefillWorker prefill_;
  std::vector<std::byte> source_;
  std::unique_ptr<DecodeLoop> loop_;
};

class CombinedLoopTest : public DecodeLoopTest {
 protected:
  CombinedLoopTest() : DecodeLoopTest(/*with_receiver=*/false) {}
};

TEST_F(DecodeLoopTest, ReservesBlocksForThePromptAndAFirstStretchOfOutput) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 7, 30, StartMode::kReserve)).ok());
  Turns(1);
  EXPECT_TRUE(sink_.ReservedFor(Key(1)));
  // Two blocks of prompt are written by the transfer; eleven tokens need a third.
  EXPECT_EQ(loop_->load().in_flight_blocks, 2u);
  EXPECT_EQ(loop_->load().owned_blocks, 1u);
  EXPECT_EQ(loop_->load().waiting_sequences, 1u);
  Turns(3);
  EXPECT_EQ(executor_.steps_executed(), 0u);
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  Turns(1);
  EXPECT_EQ(loop_->load().quarantined_blocks, 2u);
}

TEST_F(DecodeLoopTest, GeneratesFromIndexOneBehindPsToken) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 7, 4, StartMode::kReserve)).ok());
  Turns(1);
  Send(1, 2, {.num_tokens = 7, .first_token_id = 50});
  Turns(1);
  EXPECT_EQ(prefill_.delivered, 1);
  EXPECT_EQ(transfer_.confirmed(TransferId(1)), 0) << "no step has been completed";
  Turns(10);
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre(51, 52, 53));
  EXPECT_EQ(sink_.outputs()[1].tokens[0].index, 1u);
  EXPECT_EQ(sink_.EndOf(Key(1))->reason, EndReason::kLength);
  EXPECT_EQ(transfer_.confirmed(TransferId(1)), 1);
  transfer_.PumpDry();
  EXPECT_EQ(prefill_.released, 1);
}

TEST_F(DecodeLoopTest, GivesUpPsLeaseWhenItIsCancelledBeforeItsFirstStep) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 7, 4, StartMode::kReserve)).ok());
  Turns(1);
  executor_.Hold();
  Send(1, 2, {.num_tokens = 7, .first_token_id = 50});
  Turns(1);
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  Turns(1);
  EXPECT_TRUE(transfer_.cancelled_by_receiver(TransferId(1)));
  transfer_.PumpDry();
  EXPECT_EQ(prefill_.released, 1);
  executor_.Release();
  Turns(4);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(DecodeLoopTest, AReservationWithoutRoomIsRetryableAndOneThatNeverFitsIsNot) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 24, 30, StartMode::kReserve)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(2, 24, 30, StartMode::kReserve)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(3, 64, 30, StartMode::kReserve)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(4, 65, 30, StartMode::kReserve)).ok());
  Turns(1);
  EXPECT_TRUE(sink_.ReservedFor(Key(1)));
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sink_.EndOf(Key(2))->retryable);
  EXPECT_EQ(EndStatus(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(EndStatus(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(sink_.EndOf(Key(4))->retryable);
  EXPECT_THAT(std::string(EndStatus(4).message()), HasSubstr("65 tokens; at most 64"));
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  Turns(1);
}

TEST_F(DecodeLoopTest, ATransferThatIsInUseIsRefused) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 4, 30, StartMode::kReserve)).ok());
  StartSequence same = Start(2, 4, 30, StartMode::kReserve);
  same.transfer_id = TransferId(1);
  ASSERT_TRUE(loop_->Enqueue(same).ok());
  Turns(1);
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  Turns(1);
}

TEST_F(DecodeLoopTest, AReservationWhoseKvNeverComesEndsWithItsDeadline) {
  StartSequence start = Start(1, 4, 30, StartMode::kReserve);
  start.deadline = clock_.Now() + std::chrono::seconds(5);
  ASSERT_TRUE(loop_->Enqueue(start).ok());
  Turns(1);
  clock_.Advance(std::chrono::seconds(5));
  Turns(1);
  EXPECT_EQ(EndStatus(1).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(transfer_.cancelled_by_receiver(TransferId(1)));
}

TEST_F(CombinedLoopTest, ComputesPromptsItselfAndRefusesReservations) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 20, 3, StartMode::kGenerate)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(2, 7, 3, StartMode::kReserve)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(3, 7, 3, StartMode::kPrefill)).ok());
  Turns(12);
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre(30, 31, 32));
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EndStatus(3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(loop_->load().tokens_generated, 3u);
  EXPECT_EQ(loop_->load().prompt_tokens_computed, 20u);
}

TEST_F(CombinedLoopTest, SamplingAndLogprobsReachTheToken) {
  StartSequence start = Start(1, 5, 2, StartMode::kGenerate);
  start.sampling.logprobs = true;
  start.sampling.num_top_logprobs = 2;
  ASSERT_TRUE(loop_->Enqueue(start).ok());
  Turns(8);
  std::vector<SampledToken> tokens;
  for (const auto& output : sink_.outputs()) {
    for (const auto& token : output.tokens) tokens.push_back(token.token);
  }
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[0].top_logprobs.size(), 2u);
  EXPECT_LE(tokens[0].logprob, 0);
}

TEST_F(CombinedLoopTest, ADecodingSequenceKeepsItsPaceBesideALongPrompt) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 2, 40, StartMode::kGenerate)).ok());
  Turns(4);
  const size_t before = sink_.TokensOf(Key(1)).size();
  ASSERT_TRUE(loop_->Enqueue(Start(2, 40, 2, StartMode::kGenerate)).ok());
  const uint64_t steps = loop_->load().steps;
  Turns(4);
  EXPECT_EQ(sink_.TokensOf(Key(1)).size() - before, loop_->load().steps - steps)
      << "one token a step";
  Turns(40);
}

TEST_F(CombinedLoopTest, StoppingEndsWhatRunsAndRefusesWhatComes) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 5, 20, StartMode::kGenerate)).ok());
  Turns(2);
  ASSERT_TRUE(loop_->Enqueue(Start(2, 5, 20, StartMode::kGenerate)).ok());
  loop_->Stop();
  loop_->Stop();
  EXPECT_EQ(EndStatus(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(loop_->Enqueue(Start(3, 5, 20, StartMode::kGenerate)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(loop_->idle());
}

TEST(DecodeLoopThread, ServesManySequencesOfSeveralThreadsAndStops) {
  TestKvPool kv(256, 16);
  NullExecutor executor({.tokens_max = 256, .sequences_max = 64, .context_tokens_max = 1024}, 7);
  worker::CollectingSink sink;
  DecodeLoopOptions options;
  options.loop.model = std::string("m");
  options.loop.kv = kv.memory();
  options.loop.executor = &executor;
  options.loop.sink = &sink;
  const std::unique_ptr<worker::EngineLoop> loop = MakeDecodeLoop(options);
  std::vector<std::thread> routers;
  for (uint64_t session = 1; session <= 4; ++session) {
    routers.emplace_back([&, session] {
      for (uint64_t i = 1; i <= 50; ++i) {
        StartSequence start = Start(i, 10, 20, StartMode::kGenerate);
        start.key = Key(i, session);
        EXPECT_TRUE(loop->Enqueue(start).ok());
      }
    });
  }
  for (std::thread& router : routers) router.join();
  const TimePoint give_up = Clock::Real()->Now() + std::chrono::seconds(60);
  while (!loop->idle()) {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    std::this_thread::yield();
  }
  for (uint64_t session = 1; session <= 4; ++session) {
    for (uint64_t i = 1; i <= 50; ++i) {
      EXPECT_EQ(sink.TokensOf(Key(i, session)), std::vector<int32_t>(20, 7));
      ASSERT_EQ(sink.EndsOf(Key(i, session)), 1);
    }
  }
  EXPECT_EQ(loop->load().tokens_generated, 4000u);
  EXPECT_EQ(loop->load().free_blocks, 256u);
  loop->Stop();
}

}  // namespace
}  // namespace baton::decode_worker
