// Goal: what a prefill loop takes and refuses, when it pushes which block, and what it says to
// whom. Both workers together are in tests/sim. Method: turn by turn, with D played by the test.
#include "prefill_worker/loop/prefill_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/kvcache/handoff_payload.h"
#include "engine/testing/scripted_executor.h"
#include "worker/loop/testing/collecting_sink.h"
#include "worker/loop/testing/fake_transfer.h"

namespace baton::prefill_worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using worker::EndReason;
using worker::RouterSessionId;
using worker::SequenceKey;
using worker::StartMode;
using worker::StartSequence;

// D's side of the fake hand-over.
class PlayedDecodeWorker : public kvtransfer::TransferReceiverObserver {
 public:
  void OnReceived(TransferId id, const std::string& payload,
                  const kvtransfer::TransferStats& stats) override {
    received = payload;
  }
  void OnFailed(TransferId id, const absl::Status& status) override { failed = status; }
  void OnQuiescent(TransferId id) override { ++quiescent; }

  std::optional<std::string> received;
  absl::Status failed;
  int quiescent = 0;
};

class PrefillLoopTest : public testing::Test {
 protected:
  explicit PrefillLoopTest(bool with_sender = true, int32_t kv_layers = 1)
      : kv_(16, 4, kv_layers),
        executor_({.limits = {.tokens_max = 8, .sequences_max = 4, .context_tokens_max = 100},
                   .kv = kv_.memory()}) {
    PrefillLoopOptions options;
    options.loop.model = std::string("m");
    options.loop.kv = kv_.memory();
    options.loop.executor = &executor_;
    options.loop.sink = &sink_;
    options.loop.clock = &clock_;
    options.loop.limits.waiting_sequences_max = 6;
    options.loop.limits.stop_limit = std::chrono::milliseconds(50);
    // Two layers of a block.
    options.loop.limits.layer_push_bytes_min = 2 * kv_.memory().layer_bytes();
    if (with_sender) options.sender = transfer_.sender();
    loop_ = std::make_unique<PrefillLoop>(options);
  }
  ~PrefillLoopTest() override {
    transfer_.PumpDry();
    loop_->Stop();
    EXPECT_EQ(loop_->Audit().free, 16);
  }

  static SequenceKey Key(uint64_t request, uint64_t session = 1) {
    return {RouterSessionId(session), RequestId(request), 0};
  }
  static StartSequence Start(uint64_t request, int32_t num_tokens, StartMode mode) {
    StartSequence start;
    start.key = Key(request);
    start.mode = mode;
    start.model = std::string("m");
    for (int32_t i = 0; i < num_tokens; ++i) start.token_ids.push_back(10 + i);
    start.num_prompt_tokens = static_cast<uint32_t>(num_tokens);
    start.max_tokens = 20;
    start.transfer_id = TransferId(request);
    return start;
  }
  // D expects the blocks of a prompt.
  void Expect(uint64_t transfer, int32_t num_blocks) {
    destination_.assign(num_blocks * kv_.memory().block_bytes, std::byte{0});
    std::vector<kvtransfer::DestinationBlock> blocks;
    for (int32_t i = 0; i < num_blocks; ++i) {
      blocks.push_back(
          {.logical_block = static_cast<uint32_t>(i),
           .bytes = absl::MakeSpan(destination_)
                        .subspan(i * kv_.memory().block_bytes, kv_.memory().block_bytes)});
    }
    ASSERT_TRUE(transfer_.receiver()
                    ->Expect(TransferId(transfer), std::string("m"), blocks, kNever, &decode_)
                    .ok());
  }
  void Turns(int count) {
    for (int i = 0; i < count; ++i) loop_->Turn(Duration::zero());
  }
  absl::Status EndStatus(uint64_t request) {
    const auto end = sink_.EndOf(Key(request));
    return end.has_value() ? end->status : absl::UnknownError("not ended");
  }

  FakeClock clock_;
  TestKvPool kv_;
  ScriptedExecutor executor_;
  worker::FakeTransfer transfer_{1};
  worker::CollectingSink sink_;
  PlayedDecodeWorker decode_;
  std::vector<std::byte> destination_;
  std::unique_ptr<PrefillLoop> loop_;
};

class PrefillLoopWithoutSenderTest : public PrefillLoopTest {
 protected:
  PrefillLoopWithoutSenderTest() : PrefillLoopTest(/*with_sender=*/false) {}
};

class PrefillLoopOfLayersTest : public PrefillLoopTest {
 protected:
  PrefillLoopOfLayersTest() : PrefillLoopTest(/*with_sender=*/true, /*kv_layers=*/4) {}

  void ExpectDelivered() {
    Turns(2);
    transfer_.PumpDry();
    Turns(2);
    ASSERT_TRUE(decode_.received.has_value());
    transfer_.receiver()->ConfirmProgress(TransferId(1));
  }
  // Turns while the step in flight does not end; what was copied after those that copied something.
  std::vector<uint64_t> CopiedOfAHeldStep(int turns) {
    executor_.Hold();
    std::vector<uint64_t> copied;
    for (int i = 0; i < turns; ++i) {
      loop_->Turn(Duration::zero());
      transfer_.PumpDry();
      if (copied.empty() || copied.back() != transfer_.ranges_copied()) {
        copied.push_back(transfer_.ranges_copied());
      }
    }
    executor_.Release();
    return copied;
  }
};

TEST_F(PrefillLoopOfLayersTest, LayersTravelWhileTheStepThatWritesThemRuns) {
  Expect(1, 2);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 6, StartMode::kPrefill)).ok());
  // One layer of two blocks is two layers of a block, so each goes as it comes; the second block is
  // not full, but the prompt ends there.
  EXPECT_THAT(CopiedOfAHeldStep(8), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre());
  Turns(2);
  transfer_.PumpDry();
  Turns(2);
  EXPECT_EQ(transfer_.ranges_copied(), 8u) << "nothing is sent twice";
  ASSERT_TRUE(decode_.received.has_value());
  EXPECT_EQ(sink_.EndOf(Key(1))->kv_bytes, 2 * kv_.memory().block_bytes);
  for (int32_t i = 0; i < 6; ++i) {
    TestSlot slot;
    std::memcpy(&slot, destination_.data() + i * kTestSlotBytes, sizeof(slot));
    EXPECT_EQ(slot.position, i);
  }
  EXPECT_EQ(transfer_.violations(), 0);
  transfer_.receiver()->ConfirmProgress(TransferId(1));
}

TEST_F(PrefillLoopOfLayersTest, TheNextStepBeginsWithItsFirstLayer) {
  Expect(1, 4);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 14, StartMode::kPrefill)).ok());
  EXPECT_THAT(CopiedOfAHeldStep(8), ElementsAre(0, 2, 4, 6, 8));
  Turns(1);
  EXPECT_THAT(CopiedOfAHeldStep(8), ElementsAre(10, 12, 14, 16));
  ExpectDelivered();
}

TEST_F(PrefillLoopOfLayersTest, FewBytesOfTheNextStepWaitTooWhateverTheFirstHasPushed) {
  Expect(1, 3);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 11, StartMode::kPrefill)).ok());
  EXPECT_THAT(CopiedOfAHeldStep(3), ElementsAre(0, 2, 4));
  Turns(1);  // The rest of the first step's blocks, in one range each.
  // One block is left: two layers at a time.
  EXPECT_THAT(CopiedOfAHeldStep(8), ElementsAre(6, 7, 8));
  ExpectDelivered();
}

TEST_F(PrefillLoopOfLayersTest, FewBytesWaitForMoreAndTheLastLayersWaitForNothing) {
  Expect(1, 1);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 3, StartMode::kPrefill)).ok());
  // Of one block two layers at a time.
  EXPECT_THAT(CopiedOfAHeldStep(8), ElementsAre(0, 1, 2));
  ExpectDelivered();
}

TEST_F(PrefillLoopOfLayersTest, WhatTheStepHasNotReportedFollowsWhenItHasEnded) {
  Expect(1, 6);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 22, StartMode::kPrefill)).ok());
  // Launched, launched, and then one layer of the first step's two blocks.
  EXPECT_THAT(CopiedOfAHeldStep(2), ElementsAre(0, 2));
  Turns(1);
  transfer_.PumpDry();
  EXPECT_EQ(transfer_.ranges_copied(), 4u) << "the other three layers in one range a block";
  for (int i = 0; i < 8; ++i) {
    Turns(1);
    transfer_.PumpDry();
  }
  ASSERT_TRUE(decode_.received.has_value());
  EXPECT_EQ(sink_.EndOf(Key(1))->kv_bytes, 6 * kv_.memory().block_bytes);
  transfer_.receiver()->ConfirmProgress(TransferId(1));
}

TEST_F(PrefillLoopOfLayersTest, ACancelBetweenLayersKeepsTheBlocksUntilTheStepAndTheTransferEnd) {
  Expect(1, 2);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 6, StartMode::kPrefill)).ok());
  EXPECT_THAT(CopiedOfAHeldStep(3), ElementsAre(0, 2, 4));
  executor_.Hold();
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  Turns(1);
  EXPECT_EQ(loop_->load().quarantined_blocks, 2u);
  transfer_.PumpDry();
  Turns(1);
  EXPECT_EQ(loop_->load().free_blocks, 14u) << "the step still writes to them";
  executor_.Release();
  Turns(2);
  EXPECT_EQ(loop_->load().free_blocks, 16u);
  EXPECT_EQ(sink_.EndOf(Key(1))->reason, EndReason::kCancelled);
}

TEST_F(PrefillLoopTest, PushesBlocksAsTheyCompleteAndTheRestAtTheEnd) {
  Expect(1, 6);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 22, StartMode::kPrefill)).ok());
  // Chunks of 8 tokens are two blocks each. The first two are launched, the first is read.
  std::vector<uint64_t> copied;
  for (int i = 0; i < 6; ++i) {
    loop_->Turn(Duration::zero());
    transfer_.PumpDry();
    if (copied.empty() || copied.back() != transfer_.ranges_copied()) {
      copied.push_back(transfer_.ranges_copied());
    }
  }
  EXPECT_THAT(copied, ElementsAre(0, 2, 4, 6));
  ASSERT_TRUE(decode_.received.has_value());
  const auto payload = DecodeHandoffPayload(*decode_.received);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(payload->num_tokens, 22u);
  EXPECT_EQ(payload->first_token_id, 32);
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre(32));
  const auto end = sink_.EndOf(Key(1));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->reason, EndReason::kHandedOver);
  EXPECT_EQ(end->kv_bytes, 6 * kv_.memory().block_bytes);
  // What arrived is the KV of the prompt.
  for (int32_t i = 0; i < 22; ++i) {
    TestSlot slot;
    std::memcpy(&slot, destination_.data() + i * kTestSlotBytes, sizeof(slot));
    EXPECT_EQ(slot.token_id, 10 + i);
    EXPECT_EQ(slot.position, i);
  }
  EXPECT_EQ(loop_->load().leased_blocks, 6u);
  transfer_.receiver()->ConfirmProgress(TransferId(1));
}

TEST_F(PrefillLoopTest, PrefillOnlyGivesOneTokenAndNoTransfer) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 9, StartMode::kPrefillOnly)).ok());
  Turns(6);
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre(19));
  EXPECT_EQ(sink_.EndOf(Key(1))->reason, EndReason::kLength);
  EXPECT_EQ(transfer_.transfers(), 0u);
}

TEST_F(PrefillLoopTest, SeveralPromptsShareAStepAndASessionGetsOneMessageForIt) {
  for (uint64_t i = 1; i <= 4; ++i) {
    StartSequence start = Start(i, 2, StartMode::kPrefillOnly);
    if (i == 4) start.key = Key(4, /*session=*/2);
    ASSERT_TRUE(loop_->Enqueue(start).ok());
  }
  Turns(4);
  EXPECT_EQ(executor_.steps_executed(), 1u);
  const std::vector<worker::StepOutput> outputs = sink_.outputs();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].session, RouterSessionId(1));
  EXPECT_EQ(outputs[0].tokens.size(), 3u);
  EXPECT_EQ(outputs[0].ends.size(), 3u);
  EXPECT_EQ(outputs[1].session, RouterSessionId(2));
  EXPECT_EQ(outputs[1].tokens.size(), 1u);
}

TEST_F(PrefillLoopTest, RefusesModesOfADecodeWorkerAndModelsItDoesNotServe) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 9, StartMode::kGenerate)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(2, 9, StartMode::kReserve)).ok());
  StartSequence other = Start(3, 9, StartMode::kPrefill);
  other.model = std::string("other");
  ASSERT_TRUE(loop_->Enqueue(other).ok());
  Turns(1);
  EXPECT_EQ(EndStatus(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EndStatus(3).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(EndStatus(3).message()), HasSubstr("'other'"));
}

TEST_F(PrefillLoopWithoutSenderTest, RefusesHandOvers) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 9, StartMode::kPrefill)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(2, 9, StartMode::kPrefillOnly)).ok());
  Turns(6);
  EXPECT_EQ(EndStatus(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(EndStatus(2).ok());
}

TEST_F(PrefillLoopTest, RefusesPromptsThatCanNeverFitWithBothNumbers) {
  ASSERT_TRUE(loop_->Enqueue(Start(1, 65, StartMode::kPrefillOnly)).ok());
  ASSERT_TRUE(loop_->Enqueue(Start(2, 0, StartMode::kPrefillOnly)).ok());
  Turns(1);
  EXPECT_EQ(EndStatus(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(EndStatus(1).message()), HasSubstr("65 tokens; at most 64"));
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PrefillLoopTest, RefusesMoreWaitingSequencesThanItsLimitAsRetryable) {
  executor_.Hold();
  for (uint64_t i = 1; i <= 12; ++i) {
    ASSERT_TRUE(loop_->Enqueue(Start(i, 8, StartMode::kPrefillOnly)).ok());
  }
  Turns(1);
  EXPECT_EQ(sink_.EndsOf(Key(6)), 0);
  ASSERT_EQ(sink_.EndsOf(Key(7)), 1);
  EXPECT_EQ(EndStatus(7).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(sink_.EndOf(Key(7))->retryable);
  executor_.Release();
  Turns(30);
  EXPECT_TRUE(EndStatus(6).ok());
}

TEST_F(PrefillLoopTest, ASecondStartOfARunningSequenceIsIgnored) {
  executor_.Hold();
  ASSERT_TRUE(loop_->Enqueue(Start(1, 8, StartMode::kPrefillOnly)).ok());
  Turns(1);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 5, StartMode::kPrefillOnly)).ok());
  Turns(1);
  executor_.Release();
  Turns(8);
  EXPECT_EQ(sink_.EndsOf(Key(1)), 1);
  EXPECT_THAT(sink_.TokensOf(Key(1)), ElementsAre(18));
}

TEST_F(PrefillLoopTest, ATransferThatIsInUseIsRefused) {
  Expect(1, 2);
  executor_.Hold();
  ASSERT_TRUE(loop_->Enqueue(Start(1, 8, StartMode::kPrefill)).ok());
  StartSequence same = Start(2, 8, StartMode::kPrefill);
  same.transfer_id = TransferId(1);
  ASSERT_TRUE(loop_->Enqueue(same).ok());
  Turns(1);
  EXPECT_EQ(EndStatus(2).code(), absl::StatusCode::kAlreadyExists);
  executor_.Release();
  Turns(4);
  transfer_.PumpDry();
  Turns(1);
  EXPECT_EQ(sink_.EndOf(Key(1))->reason, EndReason::kHandedOver);
  transfer_.receiver()->ConfirmProgress(TransferId(1));
}

TEST_F(PrefillLoopTest, ACancelOfAnUnknownSequenceIsAnswered) {
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(77)}).ok());
  Turns(1);
  EXPECT_EQ(sink_.EndOf(Key(77))->reason, EndReason::kCancelled);
}

TEST_F(PrefillLoopTest, ACancelledPromptIsNotComputedFurther) {
  Expect(1, 10);
  ASSERT_TRUE(loop_->Enqueue(Start(1, 40, StartMode::kPrefill)).ok());
  Turns(2);
  ASSERT_TRUE(loop_->Enqueue(worker::CancelSequence{Key(1)}).ok());
  const uint64_t before = loop_->load().prompt_tokens_computed;
  Turns(5);
  EXPECT_EQ(loop_->load().prompt_tokens_computed, before);
  EXPECT_EQ(sink_.EndOf(Key(1))->reason, EndReason::kCancelled);
  EXPECT_TRUE(transfer_.cancelled_by_sender(TransferId(1)));
  transfer_.PumpDry();
  EXPECT_EQ(decode_.failed.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(decode_.quiescent, 1);
}

}  // namespace
}  // namespace baton::prefill_worker
