// Drives a RouterCore step by step: fake clock, in-memory workers that a test scripts frame by
// frame, requests whose output is recorded. Everything runs on the test's thread, except building
// tokenizers.
#ifndef BATON_ROUTER_TESTING_CORE_HARNESS_H_
#define BATON_ROUTER_TESTING_CORE_HARNESS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "router/core/router_core.h"
#include "router/policy/least_loaded_policy.h"
#include "router/testing/fake_session.h"
#include "router/testing/table_codec.h"
#include "router/testing/worker_frames.h"

namespace baton::router {

struct ScriptedWorker {
  std::shared_ptr<FakeSession> session;
  SessionId id;
  uint64_t instance = 0;
};

struct TestRequest {
  RequestId id;
  std::shared_ptr<RecordingSink> sink;
};

struct RequestSpec {
  std::vector<int32_t> prompt = {65, 66, 67};
  int64_t max_tokens = 4;
  std::vector<std::string> stop_strings = {};
  std::vector<int32_t> eos = {5};
  TimePoint deadline = kNever;
  std::shared_ptr<RecordingSink> sink = {};
  std::string model = "m";
};

class CoreHarness {
 public:
  explicit CoreHarness(RouterLimits limits = {}, RouterMetrics* metrics = NullRouterMetrics())
      : limits_(limits), pool_({}), core_(MakeOptions(limits, metrics)) {
    SetLogLevel(LogLevel::kOff);
  }
  ~CoreHarness() { pool_.Stop(); }

  FakeClock& clock() { return clock_; }
  RouterCore& core() { return core_; }
  ModelCatalog& catalog() { return catalog_; }
  RouterCore::Stats stats() { return core_.stats(); }

  void Round() { core_.RunOnce(); }
  void Advance(Duration by) {
    clock_.Advance(by);
    Round();
  }
  // Time passes while all `workers` send heartbeats.
  void AdvanceAlive(Duration by, const std::vector<ScriptedWorker>& workers) {
    constexpr Duration kStep = std::chrono::milliseconds(250);
    while (by > Duration::zero()) {
      const Duration step = std::min(by, kStep);
      clock_.Advance(step);
      by -= step;
      for (const ScriptedWorker& worker : workers) Post(worker, HeartbeatFrame());
      Round();
    }
  }

  ScriptedWorker Connect(worker::v1::SessionResponse hello, const std::string& address = "") {
    ScriptedWorker worker;
    worker.session = std::make_shared<FakeSession>();
    worker.instance = hello.hello().instance_id();
    worker.id = core_.OpenSession(
        address.empty() ? absl::StrCat("worker-", worker.instance) : address, worker.session);
    Round();
    Post(worker, std::move(hello));
    Round();
    return worker;
  }

  // Answers requests for files until the model is ready.
  void Serve(const ScriptedWorker& worker, const std::string& model = "m") {
    for (int i = 0; i < 2000; ++i) {
      for (auto& frame : worker.session->Take()) {
        if (frame.has_fetch_artifact()) Post(worker, ArtifactFrame(frame.fetch_artifact()));
      }
      core_.RunOnce(std::chrono::milliseconds(2));
      const auto found = catalog_.Find(model);
      if (found.ok() && (*found)->ready) return;
    }
    FAIL() << "the model did not become ready";
  }

  void Post(const ScriptedWorker& worker, worker::v1::SessionResponse frame) {
    core_.PostFrame(worker.id, std::move(frame));
  }
  void Send(const ScriptedWorker& worker, worker::v1::SessionResponse frame) {
    Post(worker, std::move(frame));
    Round();
  }
  void Kill(const ScriptedWorker& worker) {
    core_.PostSessionClosed(worker.id, absl::UnavailableError("killed"));
    Round();
  }

  TestRequest Submit(RequestSpec spec = {}) {
    TestRequest request{.id = RequestId((uint64_t{0xABCD} << 32) | ++next_request_),
                        .sink = spec.sink ? spec.sink : std::make_shared<RecordingSink>()};
    AdmittedRequest admitted;
    admitted.id = request.id;
    admitted.validated.model = *catalog_.Find(spec.model);
    admitted.validated.prompt = spec.prompt;
    admitted.validated.stop.max_tokens = spec.max_tokens;
    admitted.validated.stop.strings = spec.stop_strings;
    admitted.validated.stop.eos_token_ids = spec.eos;
    admitted.seed = 7;
    admitted.arrival = clock_.Now();
    admitted.deadline = spec.deadline;
    core_.Submit(std::move(admitted), request.sink);
    Round();
    return request;
  }

  // Nothing is left anywhere.
  void ExpectIdle() {
    Round();
    const RouterCore::Stats stats = core_.stats();
    EXPECT_EQ(stats.queued_requests, 0);
    EXPECT_EQ(stats.running_requests, 0);
    EXPECT_EQ(stats.worker_sequences, 0);
    EXPECT_EQ(stats.prefill_credits_in_use, 0);
  }

 private:
  RouterCore::Options MakeOptions(const RouterLimits& limits, RouterMetrics* metrics) {
    RouterCore::Options options;
    options.limits = limits;
    options.router_id = "test";
    options.clock = &clock_;
    options.metrics = metrics;
    options.policy = std::make_unique<LeastLoadedPolicy>();
    options.codec_factory = [](const TokenizerArtifacts& artifacts)
        -> absl::StatusOr<std::shared_ptr<const TextCodec>> {
      if (artifacts.tokenizer_json != TokenizerFile()) return absl::InternalError("other file");
      return std::shared_ptr<const TextCodec>(std::make_shared<TableCodec>());
    };
    options.pool = &pool_;
    options.catalog = &catalog_;
    return options;
  }

  const RouterLimits limits_;
  FakeClock clock_;
  ModelCatalog catalog_;
  TextPool pool_;
  RouterCore core_;
  uint64_t next_request_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_CORE_HARNESS_H_
