// Slow readers, floods and storms of cancels: bounded memory, no harm to others, nothing left
// behind.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/error_details.h"
#include "common/rpc/status_conversion.h"
#include "gtest/gtest.h"
#include "router/testing/router_fixture.h"

namespace baton::router {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class RouterLoad : public RouterFixture {
 protected:
  // A connection with small windows: what the client does not read stays at the server.
  std::unique_ptr<v1::GenerationService::Stub> NarrowStub() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 65535);
    return v1::GenerationService::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }
  struct OpenStream {
    std::unique_ptr<v1::GenerationService::Stub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::ClientReader<v1::StreamGenerateResponse>> reader;
  };
  OpenStream Open(const v1::GenerateRequest& request) {
    OpenStream open;
    open.stub = NarrowStub();
    open.context = std::make_unique<grpc::ClientContext>();
    open.reader = open.stub->StreamGenerate(open.context.get(), request);
    return open;
  }
  static StreamResult ReadAll(OpenStream* open) {
    StreamResult result;
    v1::StreamGenerateResponse message;
    while (open->reader->Read(&message)) Absorb(message, &result);
    result.status = open->reader->Finish();
    return result;
  }
};

TEST_F(RouterLoad, SlowReadersPauseOnlyTheirOwnSequencesAndLoseNothing) {
  constexpr int kStreams = 20;
  constexpr int kTokens = 4000;
  RouterLimits limits;
  limits.initial_credits = 64;
  StartWithWorker(
      {.token = [](const auto&, uint32_t index) { return static_cast<int32_t>('0' + index % 64); }},
      limits);
  v1::GenerateRequest request = TextRequest("x", kTokens);
  request.mutable_logprobs()->set_top(20);
  std::vector<OpenStream> slow;
  for (int i = 0; i < kStreams; ++i) slow.push_back(Open(request));
  // The worker comes to rest long before all tokens are made.
  uint64_t last = 0;
  EXPECT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(milliseconds(300));
    const uint64_t before = last;
    last = worker_->tokens_sent();
    return last > 0 && last == before;
  }));
  EXPECT_LT(last, static_cast<uint64_t>(kStreams) * kTokens / 2);
  EXPECT_EQ(worker_->sequences(), static_cast<size_t>(kStreams));
  // Others are served as if nothing was.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Stream(TextRequest("x", 100)).token_ids.size(), 100u);
  std::vector<StreamResult> results(kStreams);
  std::vector<std::thread> readers;
  for (int i = 0; i < kStreams; ++i) {
    readers.emplace_back([&, i] { results[i] = ReadAll(&slow[i]); });
  }
  for (std::thread& reader : readers) reader.join();
  for (const StreamResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    ASSERT_EQ(result.token_ids.size(), static_cast<size_t>(kTokens));
    EXPECT_EQ(result.logprobs, static_cast<size_t>(kTokens));
    for (int i = 0; i < kTokens; ++i) ASSERT_EQ(result.token_ids[i], '0' + i % 64);
  }
  ExpectIdle();
}

TEST_F(RouterLoad, AClientThatStopsReadingIsEndedAndItsCallCut) {
  RouterLimits limits;
  limits.stall_limit = milliseconds(600);
  StartWithWorker({}, limits);
  v1::GenerateRequest request = TextRequest("x", 9'000);
  request.mutable_logprobs()->set_top(20);
  OpenStream resumes = Open(request);
  OpenStream never = Open(request);
  ASSERT_TRUE(Eventually([&] { return worker_->starts() == 2; }));
  EXPECT_TRUE(Eventually([&] { return worker_->sequences() == 0; })) << "the worker is freed";
  const StreamResult result = ReadAll(&resumes);
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(result.finishes, 0);
  // The other one is cut without having read anything.
  ExpectIdle();
  EXPECT_FALSE(ReadAll(&never).status.ok());
}

TEST_F(RouterLoad, ADeadlineEndsAStalledStreamToo) {
  StartWithWorker();
  v1::GenerateRequest request = TextRequest("x", 9'000);
  request.mutable_logprobs()->set_top(20);
  OpenStream open;
  open.stub = NarrowStub();
  open.context = std::make_unique<grpc::ClientContext>();
  open.context->set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(500, GPR_TIMESPAN)));
  open.reader = open.stub->StreamGenerate(open.context.get(), request);
  ExpectIdle();
  EXPECT_EQ(ReadAll(&open).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(RouterLoad, CancelsAtRandomTimesLeaveNothingBehind) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 150;
  StartWithWorker({.step = microseconds(300)});
  std::vector<std::thread> threads;
  std::atomic<int> finished = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(static_cast<uint32_t>(t));
      auto stub = NewStub();
      for (int i = 0; i < kRounds; ++i) {
        grpc::ClientContext context;
        auto reader = stub->StreamGenerate(&context, TextRequest("x", 3));
        std::thread canceller([&context, wait = rng() % 4000] {
          std::this_thread::sleep_for(microseconds(wait));
          context.TryCancel();
          context.TryCancel();
        });
        v1::StreamGenerateResponse message;
        while (reader->Read(&message)) {
        }
        const grpc::Status status = reader->Finish();
        if (status.ok()) ++finished;
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
            << status.error_message();
        canceller.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectIdle();
  EXPECT_EQ(Stream(TextRequest("x", 3)).text, "abc");
}

TEST_F(RouterLoad, AFloodOfLargePromptsIsRefusedQuicklyAndPasses) {
  constexpr int kCalls = 300;
  RouterLimits limits;
  limits.request_bytes_max = 4 << 20;
  StartWithWorker({}, limits);
  worker_->set_paused(true);
  const v1::GenerateRequest request = TextRequest(std::string(256 << 10, 'x'), 3);
  std::atomic<int> exhausted = 0;
  std::atomic<int> invalid = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      auto stub = NewStub();
      for (int i = 0; i < kCalls / 8; ++i) {
        grpc::ClientContext context;
        v1::GenerateResponse response;
        const grpc::Status status = stub->Generate(&context, request, &response);
        if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++exhausted;
        if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) ++invalid;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // 256 KiB of text never fit 10,000 tokens: each call ends, one way or the other.
  EXPECT_EQ(exhausted + invalid, kCalls / 8 * 8);
  worker_->set_paused(false);
  EXPECT_EQ(Stream(TextRequest("x", 3)).text, "abc");
  ExpectIdle();
}

TEST_F(RouterLoad, ManySingleTokenRequestsThroughAPairFreeBothWorkers) {
  FakeWorker decode({.role = worker::v1::WORKER_ROLE_DECODE, .instance_id = 2});
  FakeWorker prefill(
      {.role = worker::v1::WORKER_ROLE_PREFILL, .instance_id = 1, .prefill_credits = 4});
  prefill.set_decode_peer(&decode);
  StartRouter({{"p", prefill.Channel()}, {"d", decode.Channel()}});
  WaitReady();
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 10; ++t) {
    threads.emplace_back([&, t] {
      auto stub = NewStub();
      for (int i = 0; i < 20; ++i) {
        grpc::ClientContext context;
        v1::GenerateResponse response;
        const int tokens = 1 + (t + i) % 3;
        const grpc::Status status = stub->Generate(&context, TextRequest("x", tokens), &response);
        if (status.ok() && response.output().token_ids_size() == tokens) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 200);
  ExpectIdle();
  EXPECT_TRUE(Eventually([&] { return prefill.sequences() + decode.sequences() == 0; }));
  StopServer();
}

}  // namespace
}  // namespace baton::router
