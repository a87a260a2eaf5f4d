// Goal: each way in which a request can end, in each stage, shown one at a time over both loops.
// Method: turn by turn with time that stands still, so the stage is exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "engine/kvcache/handoff_payload.h"
#include "tests/sim/loop_cluster.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using worker::EndReason;
using worker::TestRouter;

TestRouter::Request Request(int32_t prompt_length, uint32_t max_tokens, int32_t first = 1) {
  TestRouter::Request request;
  request.prompt = SimPrompt(prompt_length, first);
  request.max_tokens = max_tokens;
  return request;
}

void ExpectComplete(const TestRouter::State& state) {
  EXPECT_EQ(state.reason, EndReason::kLength) << state.status;
  EXPECT_EQ(state.TokenIds(), SimContinuation(state.request.prompt, state.request.max_tokens));
}

TEST(LoopScenarios, ARequestIsPrefilledHandedOverAndGenerated) {
  LoopCluster cluster({});
  const RequestId id = cluster.router().Submit(Request(21, 9));
  cluster.RunDry();
  const TestRouter::State state = cluster.router().state(id);
  ExpectComplete(state);
  EXPECT_EQ(state.prefill_end->reason, EndReason::kHandedOver);
  EXPECT_EQ(state.kv_bytes, 6 * 4 * kTestSlotBytes);
  EXPECT_EQ(cluster.transfer().confirmed(TransferId(id.value * 100000)), 1);
  // P computed the prompt and nothing else; D only what follows.
  EXPECT_EQ(cluster.prefill_executor().tokens_executed(), 21u);
  EXPECT_EQ(cluster.decode_executor().tokens_executed(), 8u);
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, EveryPromptLengthRoundABlockAndAChunkIsExact) {
  for (int32_t length : {1, 3, 4, 5, 8, 15, 16, 17, 32, 33, 60}) {
    LoopCluster cluster({});
    const RequestId split = cluster.router().Submit(Request(length, 10));
    TestRouter::Request combined = Request(length, 10);
    combined.disaggregated = false;
    const RequestId together = cluster.router().Submit(combined);
    cluster.RunDry();
    ExpectComplete(cluster.router().state(split));
    ExpectComplete(cluster.router().state(together));
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, AFirstTokenThatEndsTheRequestNeedsNoHandOver) {
  const int32_t first = SimContinuation(SimPrompt(9), 1)[0];
  for (EndReason reason : {EndReason::kLength, EndReason::kEos, EndReason::kStopToken}) {
    LoopCluster cluster({});
    TestRouter::Request request = Request(9, reason == EndReason::kLength ? 1 : 50);
    if (reason == EndReason::kEos) request.eos = {first};
    if (reason == EndReason::kStopToken) request.stop = {first};
    const RequestId id = cluster.router().Submit(request);
    cluster.RunDry();
    const TestRouter::State state = cluster.router().state(id);
    EXPECT_EQ(state.reason, reason);
    EXPECT_EQ(state.TokenIds(), std::vector<int32_t>{first});
    EXPECT_TRUE(cluster.transfer().cancelled_by_sender(TransferId(id.value * 100000)));
    EXPECT_EQ(cluster.decode_executor().steps_executed(), 0u);
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, APromptOneShortOfTheContextGivesOneTokenAndLongerOnesAreRefused) {
  LoopClusterOptions options;
  options.prefill_blocks = options.decode_blocks = 80;
  options.prefill_limits.context_tokens_max = options.decode_limits.context_tokens_max = 256;
  LoopCluster cluster(options);
  const RequestId fits = cluster.router().Submit(Request(255, 100));
  const RequestId two = cluster.router().Submit(Request(254, 100, 900));
  const RequestId too_long = cluster.router().Submit(Request(256, 1, 1800));
  while (!cluster.router().AllOver()) {
    cluster.RunDry();
    cluster.router().Retry();
  }
  EXPECT_EQ(cluster.router().state(fits).reason, EndReason::kLength);
  EXPECT_EQ(cluster.router().state(fits).tokens.size(), 1u);
  EXPECT_EQ(cluster.router().state(two).reason, EndReason::kLength);
  EXPECT_EQ(cluster.router().state(two).tokens.size(), 2u);
  const absl::Status refused = cluster.router().state(too_long).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("256 tokens; at most 255"));
  cluster.ExpectQuiet();
}

// CAN-01: every stage by the number of rounds that have passed, then a probe.
TEST(LoopScenarios, ACancelInAnyStageGivesEverythingBackAndIsAnswered) {
  int before_the_end = 0;
  for (int rounds = 0; rounds < 80; ++rounds) {
    LoopClusterOptions options;
    options.seed = static_cast<uint32_t>(rounds);
    LoopCluster cluster(options);
    const RequestId id = cluster.router().Submit(Request(40, 30));
    for (int i = 0; i < rounds; ++i) cluster.Round();
    cluster.router().Cancel(id);
    const RequestId probe = cluster.router().Submit(Request(12, 5, 700));
    while (!cluster.router().AllOver()) {
      cluster.RunDry();
      cluster.router().Retry();
    }
    const TestRouter::State state = cluster.router().state(id);
    before_the_end += *state.reason == EndReason::kCancelled ? 1 : 0;
    EXPECT_TRUE(state.decode_end.has_value());
    ExpectComplete(cluster.router().state(probe));
    cluster.ExpectQuiet();
  }
  EXPECT_GT(before_the_end, 40);
}

TEST(LoopScenarios, ADeadlineInAnyStageIsDeadlineExceeded) {
  for (int rounds = 0; rounds < 60; rounds += 3) {
    LoopClusterOptions options;
    options.seed = static_cast<uint32_t>(rounds);
    LoopCluster cluster(options);
    TestRouter::Request request = Request(40, 400);
    request.deadline = cluster.clock().Now() + seconds(1);
    const RequestId id = cluster.router().Submit(request);
    for (int i = 0; i < rounds; ++i) cluster.Round();
    cluster.Advance(seconds(1));
    cluster.RunDry();
    const TestRouter::State state = cluster.router().state(id);
    EXPECT_EQ(state.reason, EndReason::kError) << "round " << rounds;
    EXPECT_EQ(state.status.code(), absl::StatusCode::kDeadlineExceeded) << state.status;
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, ADeadlineThatPassedBeforeTheStartIsNeverComputed) {
  LoopCluster cluster({});
  TestRouter::Request request = Request(20, 5);
  request.disaggregated = false;
  request.deadline = cluster.clock().Now();
  const RequestId id = cluster.router().Submit(request);
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cluster.decode().load().prompt_tokens_computed, 0u);
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, ABrokenTransferIsUnavailableAndItsBlocksAreQuarantinedUntilQuiescence) {
  LoopCluster cluster({});
  cluster.transfer().HoldCopies(true);
  const RequestId id = cluster.router().Submit(Request(40, 30));
  cluster.RunDry();
  EXPECT_EQ(cluster.prefill().load().in_flight_blocks, 10u);
  EXPECT_EQ(cluster.decode().load().in_flight_blocks, 10u);
  cluster.transfer().FailPair(TransferId(id.value * 100000), absl::UnavailableError("cut"));
  cluster.prefill().Turn(Duration::zero());
  cluster.decode().Turn(Duration::zero());
  EXPECT_EQ(cluster.prefill().load().quarantined_blocks, 10u);
  EXPECT_EQ(cluster.decode().load().quarantined_blocks, 10u);
  EXPECT_EQ(cluster.decode().load().owned_blocks, 0u);
  EXPECT_FALSE(cluster.decode().idle());
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).status.code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(cluster.router().pair_failures().size(), 1u);
  EXPECT_EQ(cluster.router().pair_failures()[0].peer_address, "d:1");
  EXPECT_EQ(cluster.router().pair_failures()[0].peer_instance_id, 0x7001u);
  EXPECT_EQ(cluster.router().pair_failures()[0].reason, "cut");
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, PKeepsALeaseUntilDHasConfirmedAStep) {
  LoopCluster cluster({});
  cluster.decode_executor().Hold();
  const RequestId id = cluster.router().Submit(Request(16, 5));
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).prefill_end->reason, EndReason::kHandedOver);
  EXPECT_EQ(cluster.prefill().load().leased_blocks, 4u);
  EXPECT_FALSE(cluster.prefill().idle());
  cluster.decode_executor().Release();
  cluster.RunDry();
  EXPECT_EQ(cluster.prefill().load().leased_blocks, 0u);
  ExpectComplete(cluster.router().state(id));
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, AnExpiredLeaseFreesPsBlocksAndDGoesOn) {
  LoopCluster cluster({});
  cluster.decode_executor().Hold();
  const RequestId id = cluster.router().Submit(Request(16, 5));
  cluster.RunDry();
  cluster.transfer().ExpireLease(TransferId(id.value * 100000));
  cluster.RunDry();
  EXPECT_EQ(cluster.prefill().load().free_blocks, 32u);
  cluster.decode_executor().Release();
  cluster.RunDry();
  ExpectComplete(cluster.router().state(id));
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, AReceivedSequenceThatNobodyReadsDoesNotHoldPsLease) {
  LoopCluster cluster({});
  TestRouter::Request request = Request(16, 5);
  request.credits = 0;
  const RequestId id = cluster.router().Submit(request);
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).tokens.size(), 1u) << "token 0 comes from P";
  EXPECT_EQ(cluster.prefill().load().leased_blocks, 0u);
  EXPECT_EQ(cluster.decode_executor().steps_executed(), 0u);
  cluster.router().Grant(id, 2);
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).tokens.size(), 3u);
  cluster.router().Grant(id, 100);
  cluster.RunDry();
  ExpectComplete(cluster.router().state(id));
  cluster.ExpectQuiet();
}

// A peer that gave up on purpose tells the router why; this side only speaks when it does not.
TEST(LoopScenarios, AnAbortedTransferLeavesTheWordToThePeerForAWhile) {
  LoopCluster cluster({});
  cluster.transfer().HoldCopies(true);
  const RequestId id = cluster.router().Submit(Request(16, 5));
  cluster.RunDry();
  cluster.transfer().Fail(TransferId(id.value * 100000), absl::AbortedError("given up"));
  cluster.RunDry();
  EXPECT_FALSE(cluster.router().state(id).reason.has_value());
  EXPECT_EQ(cluster.decode().load().free_blocks, 32u) << "the blocks do not wait";
  EXPECT_EQ(cluster.decode().load().running_sequences, 0u);
  cluster.Advance(seconds(2));
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).status.code(), absl::StatusCode::kUnavailable);
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, AHandOverThatDoesNotMatchIsInternal) {
  for (const std::string& payload :
       {std::string("rubbish"), EncodeHandoffPayload({.num_tokens = 15, .first_token_id = 3}),
        EncodeHandoffPayload({.num_tokens = 16, .first_token_id = 3, .finite = false})}) {
    LoopCluster cluster({});
    cluster.transfer().ReplacePayload(payload);
    const RequestId id = cluster.router().Submit(Request(16, 5));
    cluster.RunDry();
    EXPECT_EQ(cluster.router().state(id).status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(cluster.decode_executor().steps_executed(), 0u);
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, RefusedTransfersAreReportedAndLeaveNothing) {
  LoopCluster cluster({});
  cluster.transfer().RefuseExpect(absl::UnavailableError("shut down"));
  const RequestId at_decode = cluster.router().Submit(Request(16, 5));
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(at_decode).status.code(), absl::StatusCode::kUnavailable);
  cluster.transfer().RefuseBegin(absl::ResourceExhaustedError("too many transfers"));
  const RequestId at_prefill = cluster.router().Submit(Request(16, 5));
  cluster.RunDry();
  const TestRouter::State state = cluster.router().state(at_prefill);
  EXPECT_EQ(state.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(state.prefill_end->retryable);
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, SpoiledLogitsAtEitherWorkerEndOnlyTheirSequence) {
  for (bool at_prefill : {true, false}) {
    LoopCluster cluster({});
    const auto spoil = [](const SequenceStep& s) {
      return s.start_position + static_cast<int32_t>(s.token_ids.size()) == 23;
    };
    (at_prefill ? cluster.prefill_executor() : cluster.decode_executor()).SpoilLogitsIf(spoil);
    const RequestId spoiled = cluster.router().Submit(Request(at_prefill ? 23 : 20, 10));
    const RequestId other = cluster.router().Submit(Request(5, 10, 300));
    cluster.RunDry();
    const TestRouter::State state = cluster.router().state(spoiled);
    EXPECT_EQ(state.status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(state.tokens.size(), at_prefill ? 0u : 3u);
    ExpectComplete(cluster.router().state(other));
    EXPECT_EQ(cluster.prefill().load().nonfinite_logits + cluster.decode().load().nonfinite_logits,
              1u);
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, ALostDeviceEndsEverythingAsUnavailableAndRefusesWhatComes) {
  for (bool at_prefill : {true, false}) {
    LoopCluster cluster({});
    const RequestId a = cluster.router().Submit(Request(20, 300));
    for (int i = 0; i < 30 && cluster.router().state(a).tokens.size() < 3; ++i) cluster.Round();
    const RequestId b = cluster.router().Submit(Request(20, 300, 500));
    (at_prefill ? cluster.prefill_executor() : cluster.decode_executor())
        .Fail(absl::InternalError("sticky device error"));
    cluster.RunDry();
    cluster.Advance(seconds(2));
    cluster.RunDry();
    const absl::Status status = cluster.router().state(at_prefill ? b : a).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    worker::EngineLoop& broken = at_prefill ? static_cast<worker::EngineLoop&>(cluster.prefill())
                                            : static_cast<worker::EngineLoop&>(cluster.decode());
    const absl::Status refused = broken.Enqueue(worker::BeginDrain{});
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("sticky device error"));
    // The process was told once: it will end, and a fresh one can serve.
    ASSERT_EQ(cluster.broken().size(), 1u);
    EXPECT_THAT(std::string(cluster.broken()[0].message()), HasSubstr("sticky device error"));
    if (at_prefill) cluster.router().Cancel(a);
    cluster.ExpectQuiet();
  }
}

TEST(LoopScenarios, DrainingFinishesWhatIsThereAndRefusesWhatComes) {
  LoopCluster cluster({});
  const RequestId running = cluster.router().Submit(Request(10, 50));
  for (int i = 0; i < 25; ++i) cluster.Round();
  ASSERT_TRUE(cluster.decode().Enqueue(worker::BeginDrain{}).ok());
  ASSERT_TRUE(cluster.prefill().Enqueue(worker::BeginDrain{}).ok());
  cluster.Round();
  const RequestId late = cluster.router().Submit(Request(10, 5));
  cluster.RunDry();
  ExpectComplete(cluster.router().state(running));
  EXPECT_EQ(cluster.router().state(late).status.code(), absl::StatusCode::kUnavailable);
  cluster.ExpectQuiet();
}

TEST(LoopScenarios, AnEndedSessionIsForgottenWithoutAnswers) {
  for (int rounds : {0, 5, 15, 40}) {
    LoopCluster cluster({});
    for (int i = 0; i < 4; ++i) cluster.router().Submit(Request(20, 200, 100 * i));
    for (int i = 0; i < rounds; ++i) cluster.Round();
    cluster.router().EndSession();
    cluster.prefill().Turn(Duration::zero());
    cluster.decode().Turn(Duration::zero());
    const uint64_t outputs = cluster.router().outputs();
    cluster.RunDry();
    EXPECT_EQ(cluster.router().outputs(), outputs);
    EXPECT_TRUE(cluster.decode().idle() && cluster.prefill().idle());
    EXPECT_EQ(cluster.decode().Audit().free, 32);
    EXPECT_EQ(cluster.prefill().Audit().free, 32);
  }
}

// SCH-04: reservations whose KV is late must not freeze what comes after them.
TEST(LoopScenarios, LateTransfersAndALargeRequestBehindThemAllFinish) {
  LoopClusterOptions options;
  options.block_tokens = 16;
  options.prefill_blocks = 80;
  options.decode_blocks = 40;
  options.prefill_limits.tokens_max = options.decode_limits.tokens_max = 64;
  LoopCluster cluster(options);
  cluster.transfer().HoldCopies(true);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(cluster.router().Submit(Request(140, 10, 1000 * i)));
  ids.push_back(cluster.router().Submit(Request(316, 10, 9000)));
  for (int i = 0; i < 3; ++i) {
    cluster.RunDry();
    cluster.router().Retry();
  }
  EXPECT_GT(cluster.decode().load().in_flight_blocks, 0u);
  EXPECT_LE(cluster.decode().load().in_flight_blocks, 20u) << "reservations are capped";
  cluster.transfer().HoldCopies(false);
  for (int i = 0; i < 100 && !cluster.router().AllOver(); ++i) {
    cluster.RunDry();
    cluster.router().Retry();
  }
  for (RequestId id : ids) ExpectComplete(cluster.router().state(id));
  cluster.ExpectQuiet();
}

// SCH-01: what can never fit is refused at once; what fits only alone ends with length.
TEST(LoopScenarios, APromptLargerThanThePoolIsRefusedAndOthersAreNotHeldUp) {
  LoopClusterOptions options;
  options.block_tokens = 16;
  options.decode_blocks = options.prefill_blocks = 40;
  options.prefill_limits = {.tokens_max = 64, .sequences_max = 8, .context_tokens_max = 2048};
  options.decode_limits = options.prefill_limits;
  LoopCluster cluster(options);
  for (bool disaggregated : {false, true}) {
    TestRouter::Request huge = Request(700, 10);
    huge.disaggregated = disaggregated;
    const RequestId refused = cluster.router().Submit(huge);
    std::vector<RequestId> small;
    for (int i = 0; i < 10; ++i) small.push_back(cluster.router().Submit(Request(20, 5, 50 * i)));
    TestRouter::Request fills = Request(600, 100, 3000);
    fills.disaggregated = false;
    const RequestId filled = cluster.router().Submit(fills);
    for (int i = 0; i < 200 && !cluster.router().AllOver(); ++i) {
      cluster.RunDry();
      cluster.router().Retry();
    }
    EXPECT_EQ(cluster.router().state(refused).status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(cluster.router().state(refused).status.message()),
                HasSubstr("700 tokens; at most 640"));
    for (RequestId id : small) ExpectComplete(cluster.router().state(id));
    const TestRouter::State end = cluster.router().state(filled);
    EXPECT_EQ(end.reason, EndReason::kLength);
    EXPECT_EQ(end.tokens.size(), 41u) << "640 slots, and the last token needs none";
  }
  cluster.ExpectQuiet();
}

// SCH-05: a large request does not hold up small ones, and is not starved by them.
TEST(LoopScenarios, SmallRequestsPassALargeOneThatIsServedInTheEnd) {
  LoopClusterOptions options;
  options.block_tokens = 16;
  options.decode_blocks = 110;
  options.decode_limits = {.tokens_max = 256, .sequences_max = 32, .context_tokens_max = 4096};
  options.limits.passes_max = 8;
  LoopCluster cluster(options);
  const auto submit = [&](int32_t length, uint32_t max_tokens, int32_t first) {
    TestRouter::Request request = Request(length, max_tokens, first);
    request.disaggregated = false;
    return cluster.router().Submit(request);
  };
  std::vector<RequestId> long_streams;
  for (int i = 0; i < 3; ++i) long_streams.push_back(submit(500, 60, 1000 * i));
  for (int i = 0; i < 20; ++i) cluster.decode().Turn(Duration::zero());
  const RequestId large = submit(480, 3, 7000);
  std::vector<RequestId> small;
  for (int i = 0; i < 20; ++i) small.push_back(submit(8, 4, 100 * i));
  for (int i = 0; i < 12; ++i) cluster.decode().Turn(Duration::zero());
  int started = 0;
  for (RequestId id : small) started += cluster.router().state(id).tokens.empty() ? 0 : 1;
  EXPECT_GE(started, 3) << "small ones start while the large one waits";
  EXPECT_LE(started, 8) << "but not for ever";
  EXPECT_TRUE(cluster.router().state(large).tokens.empty());
  cluster.RunDry();
  ExpectComplete(cluster.router().state(large));
  for (RequestId id : small) ExpectComplete(cluster.router().state(id));
  for (RequestId id : long_streams) ExpectComplete(cluster.router().state(id));
  cluster.ExpectQuiet();
}

// HLT-03: a step that never ends shows, idleness and waiting for a reader do not.
TEST(LoopScenarios, StalledSecondsGrowOnlyWhileAStepIsOwed) {
  LoopCluster cluster({});
  cluster.RunDry();
  cluster.Advance(seconds(600));
  EXPECT_EQ(cluster.decode().load().stalled_seconds, 0);
  TestRouter::Request request = Request(10, 50);
  request.disaggregated = false;
  request.credits = 3;
  const RequestId id = cluster.router().Submit(request);
  cluster.RunDry();
  cluster.Advance(seconds(600));
  EXPECT_EQ(cluster.decode().load().stalled_seconds, 0) << "paused";
  cluster.decode_executor().Hold();
  cluster.router().Grant(id, 10);
  cluster.RunDry();
  cluster.Advance(seconds(40));
  cluster.RunDry();
  EXPECT_GE(cluster.decode().load().stalled_seconds, 40);
  // A wedged engine still answers cancels and deadlines.
  cluster.router().Cancel(id);
  cluster.RunDry();
  EXPECT_EQ(cluster.router().state(id).decode_end->reason, EndReason::kCancelled);
  cluster.decode_executor().Release();
  cluster.ExpectQuiet();
  EXPECT_EQ(cluster.decode().load().stalled_seconds, 0);
}

// A second attempt brings the tokens of the first; the border stays.
TEST(LoopScenarios, AResumedAttemptGoesOnWhereTheFirstStopped) {
  const std::vector<int32_t> prompt = SimPrompt(10);
  const std::vector<int32_t> expected = SimContinuation(prompt, 30);
  for (bool disaggregated : {false, true}) {
    for (uint32_t generated : {1, 2, 7, 28, 29}) {
      LoopCluster cluster({});
      TestRouter::Request request = Request(10, 30);
      request.prompt.insert(request.prompt.end(), expected.begin(), expected.begin() + generated);
      request.num_prompt_tokens = 10;
      request.disaggregated = disaggregated;
      const RequestId id = cluster.router().Submit(request);
      cluster.RunDry();
      const TestRouter::State state = cluster.router().state(id);
      EXPECT_EQ(state.reason, EndReason::kLength);
      EXPECT_EQ(state.TokenIds(generated),
                std::vector<int32_t>(expected.begin() + generated, expected.end()));
      cluster.ExpectQuiet();
    }
  }
}

}  // namespace
}  // namespace baton
