// One request through scripted workers: the frames that each stage sends, the order of tokens, ends
// of every kind. Fake clock, no threads.
#include <chrono>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/core_harness.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr auto kP = worker::v1::WORKER_ROLE_PREFILL;
constexpr auto kD = worker::v1::WORKER_ROLE_DECODE;
constexpr auto kC = worker::v1::WORKER_ROLE_COMBINED;

// One prefill and one decode worker.
class Handover : public ::testing::Test {
 protected:
  void SetUp() override { SetUpWith({}); }
  void SetUpWith(RouterLimits limits, uint32_t credits = 4) {
    harness_ = std::make_unique<CoreHarness>(limits);
    p_ = harness_->Connect(HelloFrame(kP, 1, {TestModel()}, credits));
    d_ = harness_->Connect(HelloFrame(kD, 2));
    harness_->Serve(p_);
    p_.session->Take();
    d_.session->Take();
  }
  // Submits and takes the request as far as "P is computing".
  TestRequest Start(RequestSpec spec = {}) {
    TestRequest request = harness_->Submit(std::move(spec));
    EXPECT_EQ(d_.session->Take().size(), 1u);
    harness_->Send(d_, ReservedFrame(request.id));
    EXPECT_EQ(p_.session->Take().size(), 1u);
    return request;
  }
  void HandOver(const TestRequest& request, int32_t token) {
    harness_->Send(p_, WithEnd(TokensFrame(request.id, {{0, token}}), request.id,
                               worker::v1::END_REASON_HANDED_OVER));
  }
  static std::vector<uint64_t> Cancels(const ScriptedWorker& worker) {
    std::vector<uint64_t> out;
    for (const auto& frame : worker.session->Take()) {
      if (frame.has_cancel()) out.push_back(frame.cancel().request_id());
    }
    return out;
  }

  std::unique_ptr<CoreHarness> harness_;
  ScriptedWorker p_;
  ScriptedWorker d_;
};

TEST_F(Handover, ReservesOnDThenPrefillsOnPThenStreamsInOrder) {
  const TestRequest request = harness_->Submit();
  EXPECT_TRUE(p_.session->Take().empty()) << "P must wait for D's reservation";
  auto frames = d_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  const worker::v1::StartSequence reserve = frames[0].start();
  EXPECT_EQ(reserve.mode(), worker::v1::START_MODE_RESERVE);
  EXPECT_EQ(reserve.request_id(), request.id.value);
  EXPECT_EQ(reserve.attempt(), 1u);
  EXPECT_EQ(reserve.num_prompt_tokens(), 3u);
  EXPECT_EQ(reserve.model_revision(), "r1");
  EXPECT_EQ(reserve.initial_credits(), 256u);
  EXPECT_EQ(reserve.max_tokens(), 4u);
  EXPECT_EQ(reserve.sampling().seed(), 7u);
  harness_->Send(d_, ReservedFrame(request.id));
  frames = p_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  const worker::v1::StartSequence prefill = frames[0].start();
  EXPECT_EQ(prefill.mode(), worker::v1::START_MODE_PREFILL);
  EXPECT_EQ(prefill.transfer_address(), "kv:1");
  EXPECT_EQ(prefill.decode_instance_id(), 2u);
  EXPECT_EQ(prefill.transfer_id(), reserve.transfer_id());
  HandOver(request, 'x');
  EXPECT_EQ(request.sink->record().text, "x") << "token 0 does not wait for D";
  harness_->Send(d_, TokensFrame(request.id, {{1, 'y'}, {2, 'z'}}));
  harness_->Send(
      d_, WithEnd(TokensFrame(request.id, {{3, 'w'}}), request.id, worker::v1::END_REASON_LENGTH));
  const auto record = request.sink->record();
  EXPECT_EQ(record.text, "xyzw");
  EXPECT_THAT(record.token_ids, ElementsAre('x', 'y', 'z', 'w'));
  ASSERT_TRUE(record.finish.has_value());
  EXPECT_EQ(record.finish->finish.kind, FinishKind::kLength);
  EXPECT_EQ(record.finish->usage.completion_tokens, 4);
  EXPECT_EQ(record.finish->usage.prompt_tokens, 3);
  EXPECT_EQ(record.ends, 1);
  EXPECT_TRUE(Cancels(p_).empty());
  EXPECT_TRUE(Cancels(d_).empty());
  harness_->ExpectIdle();
}

TEST_F(Handover, TokensOfDThatPassTokenZeroWaitForIt) {
  const TestRequest request = Start();
  harness_->Send(d_, TokensFrame(request.id, {{1, 'b'}}));
  EXPECT_EQ(request.sink->record().text, "");
  harness_->Send(d_, WithEnd(TokensFrame(request.id, {{2, 'c'}, {3, 'd'}}), request.id,
                             worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().ends, 0);
  HandOver(request, 'a');
  EXPECT_EQ(request.sink->record().text, "abcd");
  EXPECT_EQ(request.sink->record().ends, 1);
  harness_->ExpectIdle();
}

TEST_F(Handover, AnEndThatShowsInNoTokenIsBelieved) {
  const TestRequest request = Start();
  HandOver(request, 'a');
  harness_->Send(
      d_, WithEnd(TokensFrame(request.id, {{1, 'b'}}), request.id, worker::v1::END_REASON_LENGTH));
  ASSERT_TRUE(request.sink->record().finish.has_value());
  EXPECT_EQ(request.sink->record().finish->usage.completion_tokens, 2);
  harness_->ExpectIdle();
}

TEST_F(Handover, DuplicatesAndStaleAttemptsAreDropped) {
  const TestRequest request = Start();
  HandOver(request, 'a');
  harness_->Send(d_, TokensFrame(request.id, {{0, 'X'}, {1, 'b'}, {1, 'X'}}));
  harness_->Send(d_, TokensFrame(request.id, {{2, 'X'}}, /*attempt=*/9));
  harness_->Send(d_, TokensFrame(RequestId(999), {{2, 'X'}}));
  harness_->Send(d_, WithEnd(TokensFrame(request.id, {{2, 'c'}, {3, 'd'}, {4, 'X'}}), request.id,
                             worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().text, "abcd");
  EXPECT_EQ(request.sink->record().ends, 1);
  harness_->ExpectIdle();
}

TEST_F(Handover, TokensOfAWorkerThatHasNothingToDoWithTheRequestAreDropped) {
  const ScriptedWorker stranger = harness_->Connect(HelloFrame(kC, 3));
  worker::v1::SessionResponse draining;
  draining.mutable_draining();
  harness_->Send(stranger, draining);
  const TestRequest request = Start();
  harness_->Send(stranger, TokensFrame(request.id, {{0, 'X'}}));
  HandOver(request, 'a');
  EXPECT_EQ(request.sink->record().text, "a");
  harness_->Kill(d_);
  EXPECT_EQ(request.sink->record().ends, 1);
}

TEST_F(Handover, AnEndTokenFromPCancelsTheReservation) {
  const TestRequest request = Start();
  harness_->Send(
      p_, WithEnd(TokensFrame(request.id, {{0, 5}}), request.id, worker::v1::END_REASON_EOS));
  const auto record = request.sink->record();
  ASSERT_TRUE(record.finish.has_value());
  EXPECT_EQ(record.finish->finish.kind, FinishKind::kEos);
  EXPECT_EQ(record.finish->finish.token_id, 5);
  EXPECT_EQ(record.text, "");
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  EXPECT_EQ(harness_->stats().worker_sequences, 1) << "D has not confirmed yet";
  harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  harness_->ExpectIdle();
}

TEST_F(Handover, MaxTokensOneNeedsNoDecodeWorker) {
  const TestRequest request = harness_->Submit({.max_tokens = 1});
  EXPECT_TRUE(d_.session->Take().empty());
  const auto frames = p_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].start().mode(), worker::v1::START_MODE_PREFILL_ONLY);
  EXPECT_EQ(frames[0].start().transfer_id(), 0u);
  harness_->Send(
      p_, WithEnd(TokensFrame(request.id, {{0, 'a'}}), request.id, worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().finish->finish.kind, FinishKind::kLength);
  EXPECT_EQ(request.sink->record().text, "a");
  harness_->ExpectIdle();
}

TEST_F(Handover, AStopStringInMidStreamCancelsDAndDropsTheOvershoot) {
  const TestRequest request = Start({.max_tokens = 50, .stop_strings = {"END"}});
  HandOver(request, 'a');
  harness_->Send(d_, TokensFrame(request.id, {{1, 'E'}, {2, 'N'}}));
  EXPECT_EQ(request.sink->record().text, "a");
  harness_->Send(d_, TokensFrame(request.id, {{3, 'D'}, {4, 'X'}}));
  const auto record = request.sink->record();
  EXPECT_EQ(record.text, "a");
  EXPECT_THAT(record.token_ids, ElementsAre('a', 'E', 'N', 'D'));
  ASSERT_TRUE(record.finish.has_value());
  EXPECT_EQ(record.finish->finish.stop_string, "END");
  EXPECT_EQ(record.finish->usage.completion_tokens, 4);
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  harness_->Send(d_, TokensFrame(request.id, {{5, 'X'}}));
  harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  EXPECT_EQ(request.sink->record().ends, 1);
  harness_->ExpectIdle();
}

TEST_F(Handover, CancelTellsEveryWorkerThatHasTheSequenceAtEveryStage) {
  const absl::Status gone = absl::CancelledError("client");
  // Reserving: only D knows it; P's credit comes back at once.
  TestRequest request = harness_->Submit();
  harness_->core().Cancel(request.id, gone);
  harness_->Round();
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  EXPECT_TRUE(Cancels(p_).empty());
  EXPECT_EQ(harness_->stats().prefill_credits_in_use, 0);
  // A reservation that crosses the cancel starts nothing.
  harness_->Send(d_, ReservedFrame(request.id));
  EXPECT_TRUE(p_.session->Take().empty());
  harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  harness_->ExpectIdle();
  // Prefilling: both.
  request = Start();
  harness_->core().Cancel(request.id, gone);
  harness_->Round();
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  EXPECT_THAT(Cancels(p_), ElementsAre(request.id.value));
  EXPECT_EQ(harness_->stats().prefill_credits_in_use, 1) << "until P has confirmed";
  harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  harness_->Send(p_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  harness_->ExpectIdle();
  // Decoding: D only, P has ended.
  request = Start();
  HandOver(request, 'a');
  harness_->Send(d_, TokensFrame(request.id, {{1, 'b'}}));
  harness_->core().Cancel(request.id, gone);
  harness_->core().Cancel(request.id, gone);
  harness_->Round();
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  EXPECT_TRUE(Cancels(p_).empty());
  harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  EXPECT_EQ(request.sink->record().ends, 1);
  harness_->ExpectIdle();
}

TEST_F(Handover, ACancelThatOvertakesTheSubmitStillEndsTheRequest) {
  auto sink = std::make_shared<RecordingSink>();
  sink->set_closed();
  harness_->Submit({.sink = sink});
  EXPECT_TRUE(d_.session->Take().empty());
  harness_->ExpectIdle();
}

TEST_F(Handover, DeadlinesAreKeptInEveryStageWithSilentWorkers) {
  const auto deadline = [&] { return harness_->clock().Now() + milliseconds(1000); };
  // In the queue: four credits are taken by four requests that never end.
  std::vector<TestRequest> busy;
  for (int i = 0; i < 4; ++i) busy.push_back(harness_->Submit());
  d_.session->Take();
  TestRequest queued = harness_->Submit({.deadline = deadline()});
  EXPECT_EQ(harness_->stats().queued_requests, 1);
  harness_->AdvanceAlive(milliseconds(999), {p_, d_});
  EXPECT_EQ(queued.sink->record().ends, 0);
  harness_->AdvanceAlive(milliseconds(1), {p_, d_});
  EXPECT_EQ(queued.sink->record().error->code(), absl::StatusCode::kDeadlineExceeded);
  for (const TestRequest& request : busy) {
    harness_->core().Cancel(request.id, absl::CancelledError(""));
    harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
  }
  harness_->ExpectIdle();
  // While D reserves, while P computes, while D generates.
  for (int stage = 0; stage < 3; ++stage) {
    d_.session->Take();
    p_.session->Take();
    const TestRequest request =
        stage == 0 ? harness_->Submit({.deadline = deadline()}) : Start({.deadline = deadline()});
    if (stage == 2) HandOver(request, 'a');
    harness_->AdvanceAlive(milliseconds(1000), {p_, d_});
    EXPECT_EQ(request.sink->record().error->code(), absl::StatusCode::kDeadlineExceeded);
    harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
    harness_->Send(p_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
    harness_->ExpectIdle();
  }
}

TEST_F(Handover, WorkersAreToldTheRemainingTime) {
  const TestRequest request =
      harness_->Submit({.deadline = harness_->clock().Now() + milliseconds(700)});
  EXPECT_EQ(d_.session->Take().at(0).start().remaining_ms(), 700u);
  harness_->clock().Advance(milliseconds(200));
  harness_->Send(d_, ReservedFrame(request.id));
  EXPECT_EQ(p_.session->Take().at(0).start().remaining_ms(), 500u);
}

TEST_F(Handover, CreditsFollowWhatTheClientHasTaken) {
  RouterLimits limits;
  limits.initial_credits = 8;
  SetUpWith(limits);
  auto sink = std::make_shared<RecordingSink>(/*reads=*/false);
  const TestRequest request = Start({.max_tokens = 100, .sink = sink});
  HandOver(request, 'a');
  std::vector<TokenSpec> tokens;
  for (uint32_t i = 1; i <= 8; ++i) tokens.push_back({i, 'b'});
  harness_->Send(d_, TokensFrame(request.id, tokens));
  EXPECT_TRUE(d_.session->Take().empty()) << "a client that reads nothing gets no more";
  sink->set_drained(2);  // Token 0 used no credit of D: one of D's tokens.
  harness_->core().NotifyDrained(request.id);
  harness_->Round();
  EXPECT_TRUE(d_.session->Take().empty()) << "grants are batched";
  sink->set_drained(9);
  harness_->core().NotifyDrained(request.id);
  harness_->core().NotifyDrained(request.id);
  harness_->Round();
  const auto frames = d_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].credits().credits(), 8u);
  EXPECT_EQ(frames[0].credits().request_id(), request.id.value);
  EXPECT_EQ(frames[0].credits().attempt(), 1u);
}

TEST_F(Handover, AStalledClientIsEndedAndLaterCut) {
  RouterLimits limits;
  limits.stall_limit = seconds(10);
  SetUpWith(limits);
  auto sink = std::make_shared<RecordingSink>(false);
  const TestRequest request = Start({.sink = sink});
  HandOver(request, 'a');
  sink->set_stalled_since(harness_->clock().Now());
  harness_->AdvanceAlive(milliseconds(9'750), {p_, d_});
  EXPECT_EQ(sink->record().ends, 0);
  harness_->AdvanceAlive(seconds(2), {p_, d_});
  EXPECT_EQ(sink->record().error->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
  EXPECT_EQ(harness_->stats().closing_requests, 1);
  EXPECT_FALSE(sink->record().aborted);
  harness_->AdvanceAlive(seconds(12), {p_, d_});
  EXPECT_TRUE(sink->record().aborted);
  harness_->AdvanceAlive(seconds(3), {p_, d_});
  EXPECT_EQ(harness_->stats().closing_requests, 0);
}

TEST_F(Handover, ATokenOutsideTheVocabularyFailsOnlyItsRequest) {
  const TestRequest good = Start();
  const TestRequest bad = Start();
  HandOver(bad, 1000);
  EXPECT_EQ(bad.sink->record().error->code(), absl::StatusCode::kInternal);
  HandOver(good, 'a');
  EXPECT_EQ(good.sink->record().text, "a");
}

TEST_F(Handover, AGapThatCannotCloseIsAnErrorNotAHang) {
  const TestRequest request = Start();
  HandOver(request, 'a');
  harness_->Send(
      d_, WithEnd(TokensFrame(request.id, {{2, 'c'}}), request.id, worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().error->code(), absl::StatusCode::kInternal);
  const TestRequest endless = Start({.max_tokens = 900});
  std::vector<TokenSpec> tokens;
  for (uint32_t i = 1; i <= 300; ++i) tokens.push_back({i, 'b'});
  harness_->Send(d_, TokensFrame(endless.id, tokens));
  EXPECT_EQ(endless.sink->record().error->code(), absl::StatusCode::kInternal);
}

TEST_F(Handover, HandedOverWithoutTheFirstTokenIsAnError) {
  const TestRequest request = Start();
  harness_->Send(p_, EndFrame(request.id, worker::v1::END_REASON_HANDED_OVER));
  EXPECT_EQ(request.sink->record().error->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
}

TEST_F(Handover, WorkerErrorsBecomeTheClientsStatus) {
  struct Case {
    absl::StatusCode from_worker;
    absl::StatusCode to_client;
  };
  for (const Case& c :
       {Case{absl::StatusCode::kInvalidArgument, absl::StatusCode::kInvalidArgument},
        Case{absl::StatusCode::kInternal, absl::StatusCode::kInternal},
        Case{absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kDeadlineExceeded},
        Case{absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable},
        Case{absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable},
        Case{absl::StatusCode::kNotFound, absl::StatusCode::kUnavailable},
        Case{absl::StatusCode::kResourceExhausted, absl::StatusCode::kResourceExhausted},
        Case{absl::StatusCode::kOk, absl::StatusCode::kInternal},
        Case{absl::StatusCode::kPermissionDenied, absl::StatusCode::kInternal},
        Case{static_cast<absl::StatusCode>(77), absl::StatusCode::kInternal}}) {
    const TestRequest request = Start();
    harness_->Send(p_, ErrorFrame(request.id, c.from_worker, "bad \xff\n"));
    ASSERT_TRUE(request.sink->record().error.has_value());
    EXPECT_EQ(request.sink->record().error->code(), c.to_client);
    EXPECT_EQ(request.sink->record().error->message(), "bad ??");
    EXPECT_THAT(Cancels(d_), ElementsAre(request.id.value));
    harness_->Send(d_, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
    harness_->ExpectIdle();
  }
}

TEST_F(Handover, UsageAndTimingsAreReported) {
  const TestRequest request = Start({.max_tokens = 2});
  harness_->clock().Advance(milliseconds(100));
  auto p_end =
      WithEnd(TokensFrame(request.id, {{0, 'a'}}), request.id, worker::v1::END_REASON_HANDED_OVER);
  p_end.mutable_step()->mutable_ends(0)->set_kv_bytes(4096);
  p_end.mutable_step()->mutable_ends(0)->set_cached_tokens(2);
  harness_->Send(p_, p_end);
  harness_->clock().Advance(milliseconds(150));
  harness_->Send(
      d_, WithEnd(TokensFrame(request.id, {{1, 'b'}}), request.id, worker::v1::END_REASON_LENGTH));
  const auto finish = request.sink->record().finish;
  ASSERT_TRUE(finish.has_value());
  EXPECT_EQ(finish->kv_handover_bytes, 4096);
  EXPECT_EQ(finish->usage.cached_tokens, 2);
  EXPECT_DOUBLE_EQ(finish->time_to_first_token_seconds, 0.1);
  EXPECT_DOUBLE_EQ(finish->total_seconds, 0.25);
  EXPECT_DOUBLE_EQ(finish->queue_seconds, 0);
  EXPECT_EQ(finish->seed, 7u);
}

class Colocated : public ::testing::Test {
 protected:
  void SetUp() override {
    c_ = harness_.Connect(HelloFrame(kC, 1, {TestModel()}, /*prefill_credits=*/2));
    harness_.Serve(c_);
    c_.session->Take();
  }
  CoreHarness harness_;
  ScriptedWorker c_;
};

TEST_F(Colocated, GeneratesOnTheCombinedWorker) {
  const TestRequest request = harness_.Submit({.max_tokens = 2});
  const auto frames = c_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].start().mode(), worker::v1::START_MODE_GENERATE);
  EXPECT_EQ(frames[0].start().initial_credits(), 256u);
  harness_.Send(c_, TokensFrame(request.id, {{0, 'a'}}));
  harness_.Send(
      c_, WithEnd(TokensFrame(request.id, {{1, 'b'}}), request.id, worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().text, "ab");
  EXPECT_EQ(request.sink->record().finish->kv_handover_bytes, 0);
  harness_.ExpectIdle();
}

TEST_F(Colocated, ACreditIsFreeOnceThePromptIsDone) {
  const TestRequest first = harness_.Submit();
  harness_.Submit();
  harness_.Submit();
  EXPECT_EQ(c_.session->Take().size(), 2u);
  EXPECT_EQ(harness_.stats().queued_requests, 1);
  harness_.Send(c_, TokensFrame(first.id, {{0, 'a'}}));
  EXPECT_EQ(c_.session->Take().size(), 1u);
  EXPECT_EQ(harness_.stats().queued_requests, 0);
}

TEST_F(Colocated, MaxTokensOneAndASilentEnd) {
  const TestRequest request = harness_.Submit({.max_tokens = 1});
  EXPECT_EQ(c_.session->Take().at(0).start().mode(), worker::v1::START_MODE_GENERATE);
  harness_.Send(c_, EndFrame(request.id, worker::v1::END_REASON_LENGTH));
  EXPECT_EQ(request.sink->record().error->code(), absl::StatusCode::kInternal);
  harness_.ExpectIdle();
}

}  // namespace
}  // namespace baton::router
