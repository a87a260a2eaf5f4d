// Workers that die, refuse, stay silent, drain, disagree or send nonsense. Fake clock, no threads.
#include <chrono>
#include <string>
#include <vector>

#include "common/rpc/error_details.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/core_harness.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr auto kP = worker::v1::WORKER_ROLE_PREFILL;
constexpr auto kD = worker::v1::WORKER_ROLE_DECODE;
constexpr auto kC = worker::v1::WORKER_ROLE_COMBINED;

class WorkerFaults : public ::testing::Test {
 protected:
  void SetUpWith(RouterLimits limits = {}, uint32_t credits = 4) {
    harness_ = std::make_unique<CoreHarness>(limits);
    p_ = harness_->Connect(HelloFrame(kP, 1, {TestModel()}, credits));
    d_ = harness_->Connect(HelloFrame(kD, 2));
    harness_->Serve(p_);
    TakeAll();
  }
  void SetUp() override { SetUpWith(); }
  void TakeAll() {
    p_.session->Take();
    d_.session->Take();
  }
  void ExpectError(const TestRequest& request, absl::StatusCode code) {
    ASSERT_TRUE(request.sink->record().error.has_value()) << "the request has not ended";
    EXPECT_EQ(request.sink->record().error->code(), code) << *request.sink->record().error;
    EXPECT_EQ(request.sink->record().ends, 1);
  }
  static int Count(const ScriptedWorker& worker, worker::v1::SessionRequest::FrameCase kind) {
    int count = 0;
    for (const auto& frame : worker.session->Take()) count += frame.frame_case() == kind;
    return count;
  }
  static int Starts(const ScriptedWorker& worker) {
    return Count(worker, worker::v1::SessionRequest::kStart);
  }
  static int Cancels(const ScriptedWorker& worker) {
    return Count(worker, worker::v1::SessionRequest::kCancel);
  }
  bool Ready() { return (*harness_->catalog().Find("m"))->ready; }

  std::unique_ptr<CoreHarness> harness_;
  ScriptedWorker p_;
  ScriptedWorker d_;
};

TEST_F(WorkerFaults, DeathOfEitherWorkerAtEveryStageEndsOrRequeuesAndTellsTheOther) {
  enum class Stage { kReserving, kPrefilling, kFirstToken, kDecoding };
  for (const Stage stage :
       {Stage::kReserving, Stage::kPrefilling, Stage::kFirstToken, Stage::kDecoding}) {
    for (const bool kill_prefill : {true, false}) {
      SCOPED_TRACE(testing::Message() << "stage " << static_cast<int>(stage) << " kill "
                                      << (kill_prefill ? "P" : "D"));
      SetUpWith();
      const TestRequest request = harness_->Submit();
      if (stage >= Stage::kPrefilling) harness_->Send(d_, ReservedFrame(request.id));
      if (stage >= Stage::kFirstToken) harness_->Send(p_, TokensFrame(request.id, {{0, 'a'}}));
      if (stage >= Stage::kDecoding) harness_->Send(d_, TokensFrame(request.id, {{1, 'b'}}));
      TakeAll();
      const ScriptedWorker& survivor = kill_prefill ? d_ : p_;
      harness_->Kill(kill_prefill ? p_ : d_);
      if (stage == Stage::kReserving) {
        EXPECT_EQ(request.sink->record().ends, 0) << "nothing has been started: it waits";
        EXPECT_EQ(harness_->stats().queued_requests, 1);
        EXPECT_EQ(Cancels(survivor), kill_prefill ? 1 : 0);
        harness_->Advance(milliseconds(500));
        ExpectError(request, absl::StatusCode::kUnavailable);
      } else if (stage == Stage::kDecoding && kill_prefill) {
        // P has done its part.
        harness_->Send(d_, WithEnd(TokensFrame(request.id, {{2, 'c'}, {3, 'd'}}), request.id,
                                   worker::v1::END_REASON_LENGTH));
        EXPECT_EQ(request.sink->record().text, "abcd");
        EXPECT_EQ(request.sink->record().ends, 1);
      } else {
        ExpectError(request, absl::StatusCode::kUnavailable);
        EXPECT_EQ(Cancels(survivor), 1);
      }
      // The survivor confirms; late tokens do no harm.
      harness_->Send(survivor, TokensFrame(request.id, {{3, 'X'}}));
      harness_->Send(survivor, EndFrame(request.id, worker::v1::END_REASON_CANCELLED));
      EXPECT_EQ(request.sink->record().ends, 1);
      harness_->ExpectIdle();
    }
  }
}

TEST_F(WorkerFaults, ARequeuedRequestRunsOnARestartedWorkerAsAnotherAttempt) {
  const TestRequest request = harness_->Submit();
  harness_->Kill(d_);
  TakeAll();
  d_ = harness_->Connect(HelloFrame(kD, 3));
  const auto frames = d_.session->Take();
  ASSERT_EQ(frames.back().start().attempt(), 2u);
  // What the first attempt's worker might still say is stale.
  harness_->Send(d_, ReservedFrame(request.id, 1));
  EXPECT_EQ(Starts(p_), 0);
  harness_->Send(d_, ReservedFrame(request.id, 2));
  const auto prefill = p_.session->Take();
  ASSERT_EQ(prefill.size(), 1u);
  EXPECT_EQ(prefill[0].start().decode_instance_id(), 3u);
  harness_->Send(
      p_, WithEnd(TokensFrame(request.id, {{0, 5}}, 2), request.id, worker::v1::END_REASON_EOS, 2));
  EXPECT_EQ(request.sink->record().finish->finish.kind, FinishKind::kEos);
}

TEST_F(WorkerFaults, ASilentWorkerIsDeadAfterTheHeartbeatLimit) {
  const TestRequest request = harness_->Submit();
  harness_->Send(d_, ReservedFrame(request.id));
  harness_->AdvanceAlive(milliseconds(1'999), {d_});
  EXPECT_EQ(request.sink->record().ends, 0);
  EXPECT_FALSE(p_.session->closed());
  harness_->AdvanceAlive(milliseconds(1), {d_});
  EXPECT_TRUE(p_.session->closed());
  ExpectError(request, absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Ready());
}

TEST_F(WorkerFaults, ASessionWithoutHelloIsClosedToo) {
  const ScriptedWorker mute{.session = std::make_shared<FakeSession>(), .id = {}, .instance = 0};
  harness_->core().OpenSession("mute", mute.session);
  harness_->AdvanceAlive(seconds(3), {p_, d_});
  EXPECT_TRUE(mute.session->closed());
  EXPECT_EQ(harness_->stats().workers, 2);
}

TEST_F(WorkerFaults, HeartbeatsGoOutAtTheirInterval) {
  harness_->AdvanceAlive(seconds(5), {p_, d_});
  EXPECT_EQ(Count(p_, worker::v1::SessionRequest::kHeartbeat), 10);
}

TEST_F(WorkerFaults, APauseOfTheRouterItselfKillsNobody) {
  harness_->Advance(std::chrono::hours(1));
  EXPECT_FALSE(p_.session->closed());
  EXPECT_FALSE(d_.session->closed());
  harness_->AdvanceAlive(seconds(2), {p_, d_});
  EXPECT_TRUE(Ready());
}

TEST_F(WorkerFaults, ARefusalForRoomGoesBackToTheFrontWithABackOff) {
  const TestRequest first = harness_->Submit();
  EXPECT_EQ(Starts(d_), 1);
  harness_->Send(d_, ErrorFrame(first.id, absl::StatusCode::kResourceExhausted, "no block", true));
  EXPECT_EQ(harness_->stats().queued_requests, 1);
  EXPECT_EQ(harness_->stats().prefill_credits_in_use, 0) << "no credit is held while it waits";
  EXPECT_EQ(Starts(d_), 0);
  harness_->AdvanceAlive(milliseconds(10), {p_, d_});
  auto frames = d_.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].start().attempt(), 2u);
  // The delay doubles.
  harness_->Send(d_,
                 ErrorFrame(first.id, absl::StatusCode::kResourceExhausted, "no block", true, 2));
  harness_->AdvanceAlive(milliseconds(19), {p_, d_});
  EXPECT_EQ(Starts(d_), 0);
  harness_->AdvanceAlive(milliseconds(1), {p_, d_});
  EXPECT_EQ(Starts(d_), 1);
}

TEST_F(WorkerFaults, SmallRequestsPassARefusedOneButNotForEver) {
  const TestRequest large = harness_->Submit();
  uint32_t attempt = 1;
  const auto refuse = [&] {
    harness_->Send(d_, ErrorFrame(large.id, absl::StatusCode::kResourceExhausted, "no block", true,
                                  attempt++));
  };
  refuse();
  TakeAll();
  const TestRequest small = harness_->Submit();
  EXPECT_EQ(Starts(d_), 1) << "the small one is tried while the large one backs off";
  harness_->core().Cancel(small.id, absl::CancelledError(""));
  harness_->Send(d_, EndFrame(small.id, worker::v1::END_REASON_CANCELLED));
  // The large one goes on being refused until its patience is over.
  const TimePoint start = harness_->clock().Now();
  while (harness_->clock().Now() - start < milliseconds(1'100)) {
    harness_->AdvanceAlive(milliseconds(10), {p_, d_});
    for (const auto& frame : d_.session->Take()) {
      if (frame.has_start()) refuse();
    }
  }
  TakeAll();
  const TestRequest late = harness_->Submit();
  EXPECT_EQ(Starts(d_), 0) << "now the queue waits for the large one";
  harness_->AdvanceAlive(milliseconds(320), {p_, d_});
  const auto frames = d_.session->Take();
  ASSERT_GE(frames.size(), 2u);
  EXPECT_EQ(frames[0].has_start() ? frames[0].start().request_id() : frames[1].start().request_id(),
            large.id.value);
  EXPECT_EQ(late.sink->record().ends, 0);
}

TEST_F(WorkerFaults, ARefusalThatIsNotRetryableEndsTheRequestWithRetryInfo) {
  const TestRequest request = harness_->Submit();
  harness_->Send(d_, ErrorFrame(request.id, absl::StatusCode::kResourceExhausted, "quota"));
  ExpectError(request, absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(rpc::RetryDelay(*request.sink->record().error).has_value());
  harness_->ExpectIdle();
}

TEST_F(WorkerFaults, WaitingForRoomHasALimit) {
  RouterLimits limits;
  limits.queue_time_max = seconds(30);
  SetUpWith(limits, /*credits=*/1);
  const TestRequest running = harness_->Submit();
  const TestRequest waiting = harness_->Submit();
  harness_->AdvanceAlive(seconds(30), {p_, d_});
  EXPECT_EQ(waiting.sink->record().ends, 0);
  harness_->AdvanceAlive(seconds(1), {p_, d_});
  ExpectError(waiting, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(running.sink->record().ends, 0);
}

TEST_F(WorkerFaults, TheQueueIsBoundedAndFirstComeFirstServed) {
  RouterLimits limits;
  limits.queue_max = 3;
  SetUpWith(limits, /*credits=*/1);
  std::vector<TestRequest> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(harness_->Submit());
  ExpectError(requests[4], absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(rpc::RetryDelay(*requests[4].sink->record().error).has_value());
  for (int i = 0; i < 4; ++i) {
    const auto frames = d_.session->Take();
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].start().request_id(), requests[i].id.value);
    harness_->Send(d_, ReservedFrame(requests[i].id));
    harness_->Send(p_, WithEnd(TokensFrame(requests[i].id, {{0, 'a'}}), requests[i].id,
                               worker::v1::END_REASON_HANDED_OVER));
  }
  EXPECT_EQ(harness_->stats().running_requests, 4);
}

TEST_F(WorkerFaults, ARequestWhoseDeadlineHasPassedIsNotQueued) {
  const TestRequest request = harness_->Submit({.deadline = harness_->clock().Now()});
  ExpectError(request, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Starts(d_), 0);
}

TEST_F(WorkerFaults, ADrainingWorkerFinishesWhatItHasAndGetsNothingNew) {
  const TestRequest running = harness_->Submit();
  harness_->Send(d_, ReservedFrame(running.id));
  worker::v1::SessionResponse draining;
  draining.mutable_draining();
  harness_->Send(p_, draining);
  EXPECT_FALSE(Ready());
  EXPECT_THAT((*harness_->catalog().Find("m"))->unready_reason, HasSubstr("no prefill worker"));
  harness_->Send(
      p_, WithEnd(TokensFrame(running.id, {{0, 5}}), running.id, worker::v1::END_REASON_EOS));
  EXPECT_TRUE(running.sink->record().finish.has_value());
}

TEST_F(WorkerFaults, AStartThatCrossesDrainingGoesToAnotherWorker) {
  const TestRequest request = harness_->Submit();
  worker::v1::SessionResponse draining;
  draining.mutable_draining();
  harness_->Send(d_, draining);
  harness_->Send(d_, ErrorFrame(request.id, absl::StatusCode::kUnavailable, "draining"));
  EXPECT_EQ(request.sink->record().ends, 0);
  const ScriptedWorker other = harness_->Connect(HelloFrame(kD, 9));
  EXPECT_EQ(Starts(other), 1);
}

TEST_F(WorkerFaults, APairThatFailedIsAvoidedForAWhile) {
  const ScriptedWorker d2 = harness_->Connect(HelloFrame(kD, 3));
  d2.session->Take();
  worker::v1::SessionResponse failed;
  failed.mutable_pair_failed()->set_peer_instance_id(2);
  failed.mutable_pair_failed()->set_reason("no route");
  harness_->Send(p_, failed);
  for (int i = 0; i < 4; ++i) harness_->Submit();
  EXPECT_EQ(Starts(d_), 0);
  EXPECT_EQ(Starts(d2), 4);
  EXPECT_TRUE(Ready()) << "both workers are healthy";
  harness_->Kill(d2);
  harness_->AdvanceAlive(milliseconds(4'900), {p_, d_});
  EXPECT_EQ(Starts(d_), 0);
  harness_->AdvanceAlive(milliseconds(200), {p_, d_});
  EXPECT_GT(Starts(d_), 0) << "after the back-off the pair is tried again";
}

TEST_F(WorkerFaults, AWorkerThatDoesNotTakeFramesIsLost) {
  d_.session->set_accepting(false);
  const TestRequest request = harness_->Submit();
  EXPECT_TRUE(d_.session->closed());
  EXPECT_EQ(harness_->stats().workers, 1);
  EXPECT_EQ(harness_->stats().queued_requests, 1);
  harness_->Round();
  harness_->Advance(milliseconds(500));
  ExpectError(request, absl::StatusCode::kUnavailable);
}

TEST_F(WorkerFaults, WorkersThatDisagreeUnderOneNameAreRefusedForThatModelOnly) {
  using Spoil = std::function<void(worker::v1::ModelDescription*)>;
  uint64_t instance = 10;
  for (const Spoil& spoil : std::vector<Spoil>{
           [](auto* m) { m->set_revision("r2"); },
           [](auto* m) { m->mutable_artifacts(0)->set_digest(std::string(32, 'x')); },
           [](auto* m) { m->set_kv_layout("f16 test"); }, [](auto* m) { m->add_eos_token_ids(6); },
           [](auto* m) { m->set_context_tokens_max(500); },
           [](auto* m) { m->set_vocabulary_size(2000); }}) {
    auto other = TestModel();
    spoil(&other);
    ++instance;
    const ScriptedWorker worker = harness_->Connect(
        HelloFrame(kD, instance, {other, TestModel(absl::StrCat("n", instance))}));
    worker.session->Take();
    harness_->Submit();
    EXPECT_EQ(Starts(worker), 0);
    EXPECT_EQ(Starts(d_), 1);
    EXPECT_TRUE(harness_->catalog().Find(absl::StrCat("n", instance)).ok());
    harness_->core().Cancel(RequestId((uint64_t{0xABCD} << 32) | (instance - 10)),
                            absl::CancelledError(""));
    harness_->Round();
    harness_->Send(d_, EndFrame(RequestId((uint64_t{0xABCD} << 32) | (instance - 10)),
                                worker::v1::END_REASON_CANCELLED));
    TakeAll();
  }
  // Once all of the old ones have gone, a new revision takes the name over.
  harness_->Kill(p_);
  harness_->Kill(d_);
  auto next = TestModel();
  next.set_revision("r2");
  const ScriptedWorker combined = harness_->Connect(HelloFrame(kC, 50, {next}));
  harness_->Serve(combined);
  EXPECT_EQ((*harness_->catalog().Find("m"))->revision, "r2");
}

TEST_F(WorkerFaults, MalformedHellosCloseTheSessionAndNothingElse) {
  using Spoil = std::function<void(worker::v1::WorkerHello*)>;
  for (const Spoil& spoil : std::vector<Spoil>{
           [](auto* h) { h->set_protocol_version(2); }, [](auto* h) { h->clear_role(); },
           [](auto* h) { h->set_prefill_credits(0); },
           [](auto* h) { h->set_worker_id(std::string(1000, 'x')); },
           [](auto* h) {
             for (int i = 0; i < 100; ++i) *h->add_models() = TestModel();
           },
           // The same process a second time.
           [](auto* h) {
             h->set_worker_id("w1");
             h->set_instance_id(1);
           }}) {
    auto hello = HelloFrame(kP, 77);
    spoil(hello.mutable_hello());
    const ScriptedWorker worker = harness_->Connect(hello);
    EXPECT_TRUE(worker.session->closed());
  }
  const ScriptedWorker early = harness_->Connect(HeartbeatFrame());
  EXPECT_TRUE(early.session->closed());
  EXPECT_EQ(harness_->stats().workers, 2);
  EXPECT_TRUE(Ready());
}

TEST_F(WorkerFaults, MalformedModelsAreRefusedOneByOne) {
  using Spoil = std::function<void(worker::v1::ModelDescription*)>;
  uint64_t instance = 100;
  for (const Spoil& spoil : std::vector<Spoil>{
           [](auto* m) { m->clear_name(); }, [](auto* m) { m->set_name(std::string(300, 'x')); },
           [](auto* m) { m->set_context_tokens_max(-1); },
           [](auto* m) { m->set_context_tokens_max(INT64_MAX); },
           [](auto* m) { m->set_vocabulary_size(0); },
           [](auto* m) { m->set_sampled_vocabulary_size(1001); },
           [](auto* m) { m->add_eos_token_ids(1000); }, [](auto* m) { m->add_eos_token_ids(-1); },
           [](auto* m) { m->clear_artifacts(); },
           [](auto* m) { m->mutable_artifacts(0)->set_digest("short"); },
           [](auto* m) { m->mutable_artifacts(0)->set_size_bytes(0); },
           [](auto* m) { m->mutable_artifacts(0)->set_size_bytes(int64_t{65} << 20); },
           [](auto* m) { *m->add_artifacts() = m->artifacts(0); }}) {
    auto model = TestModel(absl::StrCat("bad", ++instance));
    spoil(&model);
    const ScriptedWorker worker = harness_->Connect(HelloFrame(kC, instance, {model}));
    EXPECT_FALSE(worker.session->closed());
    EXPECT_EQ(harness_->catalog().List().size(), 1u);
  }
}

TEST_F(WorkerFaults, OutOfRangeSamplingDefaultsAreDropped) {
  auto model = TestModel("odd");
  model.mutable_sampling_defaults()->set_temperature(-3);
  model.mutable_sampling_defaults()->set_top_p(0.9);
  harness_->Connect(HelloFrame(kC, 60, {model}));
  const auto served = *harness_->catalog().Find("odd");
  EXPECT_FALSE(served->defaults.temperature.has_value());
  EXPECT_EQ(served->defaults.top_p, 0.9);
}

TEST_F(WorkerFaults, AModelWithoutACompleteSetIsListedButNotReady) {
  harness_->Kill(p_);
  EXPECT_FALSE(Ready());
  EXPECT_EQ(CheckReady(**harness_->catalog().Find("m")).code(), absl::StatusCode::kUnavailable);
  p_ = harness_->Connect(HelloFrame(kP, 11));
  EXPECT_TRUE(Ready()) << "the tokenizer is still there";
}

TEST(TokenizerFetch, GoesOnAtAnotherWorkerWhenTheFirstDies) {
  CoreHarness harness;
  const ScriptedWorker first = harness.Connect(HelloFrame(kC, 1));
  auto frames = first.session->Take();
  ASSERT_TRUE(frames.back().has_fetch_artifact());
  harness.Send(first, ArtifactFrame(frames.back().fetch_artifact()));
  const ScriptedWorker second = harness.Connect(HelloFrame(kC, 2));
  EXPECT_EQ(second.session->Take().size(), 1u) << "only Hello: the first is being asked";
  harness.Kill(first);
  frames = second.session->Take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].fetch_artifact().offset(), 256 << 10) << "what has arrived is kept";
  harness.Send(second, ArtifactFrame(frames[0].fetch_artifact()));
  harness.Serve(second);
}

TEST(TokenizerFetch, AWrongFileIsNeverUsed) {
  CoreHarness harness;
  const ScriptedWorker liar = harness.Connect(HelloFrame(kC, 1));
  for (int i = 0; i < 3; ++i) {
    auto chunk = ArtifactFrame(liar.session->Take().back().fetch_artifact());
    (*chunk.mutable_artifact()->mutable_data())[0] ^= 1;
    harness.Send(liar, chunk);
  }
  EXPECT_TRUE(liar.session->closed());
  EXPECT_EQ(liar.session->reason().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE((*harness.catalog().Find("m"))->ready);
  const ScriptedWorker honest = harness.Connect(HelloFrame(kC, 2));
  harness.Serve(honest);
}

TEST(TokenizerFetch, PiecesThatAreTooLongEmptyOrUnknownEndTheSession) {
  using Spoil = std::function<void(worker::v1::ArtifactChunk*)>;
  for (const Spoil& spoil : std::vector<Spoil>{
           [](auto* c) { c->set_data(std::string((256 << 10) + 1, 'x')); },
           [](auto* c) { c->clear_data(); }, [](auto* c) { c->set_unknown(true); }}) {
    CoreHarness harness;
    const ScriptedWorker worker = harness.Connect(HelloFrame(kC, 1));
    auto chunk = ArtifactFrame(worker.session->Take().back().fetch_artifact());
    spoil(chunk.mutable_artifact());
    harness.Send(worker, chunk);
    EXPECT_TRUE(worker.session->closed());
  }
}

TEST(TokenizerFetch, PiecesThatWereNotAskedForAreIgnored) {
  CoreHarness harness;
  const ScriptedWorker worker = harness.Connect(HelloFrame(kC, 1));
  auto chunk = ArtifactFrame(worker.session->Take().back().fetch_artifact());
  auto elsewhere = chunk;
  elsewhere.mutable_artifact()->set_offset(5);
  harness.Send(worker, elsewhere);
  elsewhere = chunk;
  elsewhere.mutable_artifact()->set_digest(std::string(32, 'y'));
  harness.Send(worker, elsewhere);
  harness.Send(worker, chunk);
  harness.Send(worker, chunk);  // The same again.
  EXPECT_FALSE(worker.session->closed());
  harness.Serve(worker);
}

TEST(TokenizerFetch, AWorkerThatSendsNoFilesIsLeftForAnother) {
  CoreHarness harness;
  const ScriptedWorker mute = harness.Connect(HelloFrame(kC, 1));
  const ScriptedWorker other = harness.Connect(HelloFrame(kC, 2));
  mute.session->Take();
  other.session->Take();
  harness.AdvanceAlive(seconds(5), {mute, other});
  bool asked = false;
  for (const auto& frame : other.session->Take()) {
    if (frame.has_fetch_artifact()) {
      asked = true;
      harness.Send(other, ArtifactFrame(frame.fetch_artifact()));
    }
  }
  EXPECT_TRUE(asked);
  harness.Serve(other);
}

TEST(CoreStop, EndsEverythingThatIsQueuedOrRunning) {
  auto harness = std::make_unique<CoreHarness>();
  const ScriptedWorker worker = harness->Connect(HelloFrame(kC, 1, {TestModel()}, 1));
  harness->Serve(worker);
  const TestRequest running = harness->Submit();
  const TestRequest queued = harness->Submit();
  harness->core().BeginDrain();
  const TestRequest refused = harness->Submit();
  EXPECT_EQ(refused.sink->record().error->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(running.sink->record().ends + queued.sink->record().ends, 0) << "a drain lets them run";
  harness->core().Stop();
  EXPECT_EQ(running.sink->record().error->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queued.sink->record().error->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(worker.session->closed());
}

}  // namespace
}  // namespace baton::router
