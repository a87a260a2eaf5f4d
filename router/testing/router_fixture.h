// A router behind a real server, and clients of it, for integration tests. After each test nothing
// may be left: no open call, no sequence at a worker, no credit, no byte.
#ifndef BATON_ROUTER_TESTING_ROUTER_FIXTURE_H_
#define BATON_ROUTER_TESTING_ROUTER_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "baton/v1/generation.grpc.pb.h"
#include "common/base/log.h"
#include "gtest/gtest.h"
#include "router/router.h"
#include "router/testing/fake_worker.h"

namespace baton::router {

// Waits up to ten seconds (sanitizers and busy machines are slow; a pass is quick).
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

struct StreamResult {
  std::string text;
  std::vector<int32_t> token_ids;
  size_t logprobs = 0;
  int messages = 0;
  int finishes = 0;
  v1::Finish finish;
  v1::Usage usage;
  std::string model;
  grpc::Status status;
};

class RouterFixture : public ::testing::Test {
 protected:
  RouterFixture() { SetLogLevel(LogLevel::kOff); }
  ~RouterFixture() override {
    StopServer();
    router_ = nullptr;
  }

  void StartRouter(std::vector<WorkerEndpoint> workers, RouterLimits limits = {},
                   RouterMetrics* metrics = NullRouterMetrics()) {
    RouterOptions options;
    options.workers = std::move(workers);
    options.limits = limits;
    options.metrics = metrics;
    auto router = Router::Create(std::move(options));
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(16 << 20);
    builder.RegisterService(router_->generation_service());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
    stub_ = NewStub();
  }

  // One combined worker in this process, and a router in front of it.
  void StartWithWorker(FakeWorkerOptions worker = {}, RouterLimits limits = {}) {
    worker_ = std::make_unique<FakeWorker>(std::move(worker));
    StartRouter({{"w", worker_->Channel()}}, limits);
    WaitReady();
  }

  void WaitReady() {
    ASSERT_TRUE(Eventually([&] { return router_->ready(); })) << "no model became ready";
  }

  // With a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<v1::GenerationService::Stub> NewStub() {
    return v1::GenerationService::NewStub(NewChannel());
  }

  static v1::GenerateRequest TextRequest(const std::string& text, int64_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stop()->set_max_tokens(max_tokens);
    return request;
  }

  static void Absorb(const v1::StreamGenerateResponse& message, StreamResult* result) {
    EXPECT_EQ(result->finishes, 0) << "a message after the finish";
    EXPECT_FALSE(message.has_finish() && message.has_delta());
    ++result->messages;
    result->text += message.delta().text();
    result->token_ids.insert(result->token_ids.end(), message.delta().token_ids().begin(),
                             message.delta().token_ids().end());
    result->logprobs += static_cast<size_t>(message.delta().logprobs_size());
    result->model = message.model();
    result->usage = message.usage();
    if (message.has_finish()) {
      ++result->finishes;
      result->finish = message.finish();
    }
  }

  StreamResult Stream(const v1::GenerateRequest& request,
                      std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    grpc::ClientContext context;
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_millis(deadline.count(), GPR_TIMESPAN)));
    auto reader = stub_->StreamGenerate(&context, request);
    StreamResult result;
    v1::StreamGenerateResponse message;
    while (reader->Read(&message)) Absorb(message, &result);
    result.status = reader->Finish();
    return result;
  }

  grpc::Status Unary(const v1::GenerateRequest& request, v1::GenerateResponse* response,
                     std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    grpc::ClientContext context;
    context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_millis(deadline.count(), GPR_TIMESPAN)));
    return stub_->Generate(&context, request, response);
  }

  // Nothing is held anywhere.
  void ExpectIdle() {
    EXPECT_TRUE(Eventually([&] {
      const RouterSnapshot s = router_->snapshot();
      return s.open_calls == 0 && s.queued_requests == 0 && s.running_requests == 0 &&
             s.worker_sequences == 0 && s.prefill_credits_in_use == 0 && s.request_bytes == 0;
    })) << "open calls "
        << router_->snapshot().open_calls << ", worker sequences "
        << router_->snapshot().worker_sequences << ", running "
        << router_->snapshot().running_requests;
    EXPECT_TRUE(Eventually([&] { return worker_ == nullptr || worker_->sequences() == 0; }));
  }

  void StopServer() {
    if (server_ == nullptr) return;
    router_->Shutdown(Clock::Real()->Now());
    server_->Shutdown(gpr_inf_past(GPR_CLOCK_MONOTONIC));
    server_ = nullptr;
  }

  std::unique_ptr<FakeWorker> worker_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TESTING_ROUTER_FIXTURE_H_
