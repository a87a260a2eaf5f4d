// The public API end to end: a real server and clients, workers without engines.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/error_details.h"
#include "common/rpc/status_conversion.h"
#include "gtest/gtest.h"
#include "router/testing/router_fixture.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class RouterIntegration : public RouterFixture {};

TEST_F(RouterIntegration, StreamsAndAnswersUnaryCallsWithTheSameBytes) {
  StartWithWorker();
  v1::GenerateRequest request = TextRequest("hello", 20);
  request.mutable_logprobs()->set_top(3);
  const StreamResult stream = Stream(request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
  EXPECT_EQ(stream.text, "abcdefghabcdefghabcd");
  EXPECT_EQ(stream.token_ids.size(), 20u);
  EXPECT_EQ(stream.logprobs, 20u);
  EXPECT_EQ(stream.finishes, 1);
  EXPECT_EQ(stream.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.usage.prompt_tokens(), 6) << "BOS included";
  EXPECT_EQ(stream.usage.completion_tokens(), 20);
  EXPECT_EQ(stream.model, "m");
  EXPECT_GT(stream.finish.timings().time_to_first_token_seconds(), 0);
  v1::GenerateResponse unary;
  ASSERT_TRUE(Unary(request, &unary).ok());
  EXPECT_EQ(unary.output().text(), stream.text);
  EXPECT_EQ(unary.output().token_ids_size(), 20);
  EXPECT_EQ(unary.output().logprobs_size(), 20);
  EXPECT_EQ(unary.output().logprobs(0).top_size(), 3);
  EXPECT_EQ(unary.usage().completion_tokens(), 20);
  EXPECT_EQ(unary.finish().reason(), v1::FINISH_REASON_LENGTH);
  ExpectIdle();
}

TEST_F(RouterIntegration, StopStringsEndStreamAndUnaryAtTheSameByte) {
  StartWithWorker();
  v1::GenerateRequest request = TextRequest("x", 1000);
  request.mutable_stop()->add_stop_strings("efghab");
  for (const bool include : {false, true}) {
    request.mutable_stop()->set_include_stop_string(include);
    const StreamResult stream = Stream(request);
    EXPECT_EQ(stream.text, include ? "abcdefghab" : "abcd");
    EXPECT_EQ(stream.finish.reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(stream.finish.stop_string(), "efghab");
    EXPECT_EQ(stream.usage.completion_tokens(), 10);
    v1::GenerateResponse unary;
    ASSERT_TRUE(Unary(request, &unary).ok());
    EXPECT_EQ(unary.output().text(), stream.text);
  }
  ExpectIdle();
}

TEST_F(RouterIntegration, StopTokensAndEndTokensAreReported) {
  StartWithWorker({.token = [](const auto&, uint32_t index) -> int32_t {
    return index == 2 ? 257 : 'a' + static_cast<int32_t>(index);
  }});
  v1::GenerateRequest request = TextRequest("x", 10);
  StreamResult result = Stream(request);
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.finish.eos_token_id(), 257);
  EXPECT_EQ(result.usage.completion_tokens(), 3);
  request.mutable_stop()->set_ignore_eos(true);
  result = Stream(request);
  EXPECT_EQ(result.usage.completion_tokens(), 10);
  EXPECT_EQ(result.finish.reason(), v1::FINISH_REASON_LENGTH);
  request.mutable_stop()->add_stop_token_ids('b');
  result = Stream(request);
  EXPECT_EQ(result.text, "a");
  EXPECT_EQ(result.finish.stop_token_id(), 'b');
  ExpectIdle();
}

TEST_F(RouterIntegration, CharactersSpreadOverTokensAreNeverBroken) {
  const std::string text = "삼겹살 é👩‍🚀";
  StartWithWorker({.token = [&text](const auto&, uint32_t index) -> int32_t {
    return static_cast<unsigned char>(text[index]);
  }});
  const v1::GenerateRequest request = TextRequest("x", static_cast<int64_t>(text.size()));
  const StreamResult stream = Stream(request);
  EXPECT_EQ(stream.text, text);
  EXPECT_EQ(stream.token_ids.size(), text.size());
}

TEST_F(RouterIntegration, PrefillAndDecodeWorkersShareARequest) {
  FakeWorker decode({.role = worker::v1::WORKER_ROLE_DECODE, .instance_id = 2});
  FakeWorker prefill({.role = worker::v1::WORKER_ROLE_PREFILL, .instance_id = 1});
  prefill.set_decode_peer(&decode);
  StartRouter({{"p", prefill.Channel()}, {"d", decode.Channel()}});
  WaitReady();
  const StreamResult result = Stream(TextRequest("hello", 30));
  EXPECT_EQ(result.text, "abcdefghabcdefghabcdefghabcdef");
  EXPECT_EQ(result.finish.timings().kv_handover_bytes(), 64 * 6);
  EXPECT_EQ(prefill.starts(), 1u);
  EXPECT_EQ(decode.starts(), 1u);
  const uint64_t decode_starts = decode.starts();
  EXPECT_EQ(Stream(TextRequest("hello", 1)).text, "a");
  EXPECT_EQ(decode.starts(), decode_starts) << "one token needs no decode worker";
  ExpectIdle();
  EXPECT_EQ(prefill.sequences() + decode.sequences(), 0u);
  StopServer();
}

TEST_F(RouterIntegration, SeedsAreMintedOrEchoed) {
  StartWithWorker();
  v1::GenerateRequest request = TextRequest("x", 1);
  const uint64_t first = Stream(request).finish.seed();
  const uint64_t second = Stream(request).finish.seed();
  EXPECT_NE(first, second);
  request.mutable_sampling()->set_seed(42);
  EXPECT_EQ(Stream(request).finish.seed(), 42u);
}

TEST_F(RouterIntegration, EqualClientRequestIdsDoNotCollide) {
  StartWithWorker({.step = milliseconds(5), .token = [](const auto& start, uint32_t) {
                     return start.token_ids(start.token_ids_size() - 1);
                   }});
  v1::GenerateRequest one = TextRequest("1", 20);
  one.set_client_request_id("same");
  v1::GenerateRequest two = TextRequest("2", 20);
  two.set_client_request_id("same");
  StreamResult first;
  std::thread thread([&] { first = Stream(one); });
  const StreamResult second = Stream(two);
  thread.join();
  EXPECT_EQ(first.text, std::string(20, '1'));
  EXPECT_EQ(second.text, std::string(20, '2'));
  ExpectIdle();
}

TEST_F(RouterIntegration, TokenizesDetokenizesAndListsModels) {
  StartWithWorker();
  grpc::ClientContext c1;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string("a\0é", 4));
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&c1, tokenize, &tokens).ok());
  EXPECT_THAT(tokens.token_ids(), ::testing::ElementsAre(256, 'a', 0, 0xC3, 0xA9));
  EXPECT_EQ(tokens.tokens(0), "<s>");
  EXPECT_EQ(tokens.tokens(3), "\xC3");
  grpc::ClientContext c2;
  v1::DetokenizeRequest detokenize;
  for (const int32_t id : tokens.token_ids()) detokenize.mutable_token_ids()->add_ids(id);
  detokenize.mutable_token_ids()->add_ids(0xFF);
  detokenize.set_skip_special(true);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&c2, detokenize, &text).ok());
  EXPECT_EQ(text.text(), std::string("a\0é\xEF\xBF\xBD", 7));
  grpc::ClientContext c3;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&c3, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "m");
  EXPECT_EQ(models.models(0).revision(), "r1");
  EXPECT_EQ(models.models(0).context_tokens_max(), 10'000);
  EXPECT_TRUE(models.models(0).ready());
  // U+0000 does not cut a prompt.
  EXPECT_EQ(Stream(TextRequest(std::string("a\0b", 3), 1)).usage.prompt_tokens(), 4);
  ExpectIdle();
}

TEST_F(RouterIntegration, CancellingFreesTheWorkerAtOnceForStreamsUnaryCallsAndLostConnections) {
  StartWithWorker();
  for (int kind = 0; kind < 3; ++kind) {
    SCOPED_TRACE(kind);
    auto channel = NewChannel();
    auto stub = v1::GenerationService::NewStub(channel);
    auto context = std::make_unique<grpc::ClientContext>();
    if (kind == 1) {
      std::thread call([&] {
        v1::GenerateResponse response;
        const grpc::Status status =
            stub->Generate(context.get(), TextRequest("x", 9'000), &response);
        EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
      });
      ASSERT_TRUE(Eventually([&] { return worker_->sequences() == 1; }));
      context->TryCancel();
      call.join();
    } else {
      auto reader = stub->StreamGenerate(context.get(), TextRequest("x", 9'000));
      v1::StreamGenerateResponse message;
      ASSERT_TRUE(reader->Read(&message));
      if (kind == 0) context->TryCancel();
      reader = nullptr;
      context = nullptr;  // Drops the call, and with the channel the connection.
      stub = nullptr;
      channel = nullptr;
    }
    const TimePoint cancelled = Clock::Real()->Now();
    EXPECT_TRUE(Eventually([&] { return worker_->sequences() == 0; }));
    EXPECT_LT(ToSeconds(Clock::Real()->Now() - cancelled), 5.0);
    ExpectIdle();
  }
  EXPECT_TRUE(Stream(TextRequest("x", 3)).status.ok());
}

TEST_F(RouterIntegration, DeadlinesAreKeptAlthoughTheWorkerIsPaused) {
  StartWithWorker({.prefill_credits = 1});
  worker_->set_paused(true);
  // The first holds the only credit, the second waits in the queue.
  StreamResult running;
  std::thread thread([&] { running = Stream(TextRequest("x", 100), milliseconds(600)); });
  ASSERT_TRUE(Eventually([&] { return worker_->sequences() == 1; }));
  const TimePoint start = Clock::Real()->Now();
  const StreamResult queued = Stream(TextRequest("y", 100), milliseconds(500));
  const double seconds_taken = ToSeconds(Clock::Real()->Now() - start);
  EXPECT_EQ(queued.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(seconds_taken, 0.45);
  EXPECT_LT(seconds_taken, 3.0);
  thread.join();
  EXPECT_EQ(running.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(worker_->starts(), 1u) << "what expired in the queue was never started";
  worker_->set_paused(false);
  ExpectIdle();
  EXPECT_TRUE(Stream(TextRequest("x", 3)).status.ok());
}

TEST_F(RouterIntegration, ADeadlineInMidStreamGivesTextAndThenTheError) {
  StartWithWorker({.step = milliseconds(10)});
  const StreamResult result = Stream(TextRequest("x", 9'000), milliseconds(700));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(result.text.empty());
  EXPECT_EQ(result.finishes, 0);
  ExpectIdle();
}

TEST_F(RouterIntegration, TheWorkerMayComeUpAfterTheRouterAndComeBack) {
  FakeWorkerOptions options;
  options.listen = "127.0.0.1:0";
  auto worker = std::make_unique<FakeWorker>(options);
  const std::string address = worker->address();
  worker = nullptr;
  StartRouter({{address, nullptr}});
  const StreamResult early = Stream(TextRequest("x", 3));
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  for (uint64_t life = 1; life <= 3; ++life) {
    options.listen = address;
    options.instance_id = life;
    worker = std::make_unique<FakeWorker>(options);
    WaitReady();
    EXPECT_EQ(Stream(TextRequest("x", 3)).text, "abc");
    // Killed in mid-stream.
    grpc::ClientContext context;
    auto reader = stub_->StreamGenerate(&context, TextRequest("x", 9'000));
    v1::StreamGenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    const TimePoint killed = Clock::Real()->Now();
    worker = nullptr;
    while (reader->Read(&message)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_LT(ToSeconds(Clock::Real()->Now() - killed), 2.5);
    EXPECT_TRUE(Eventually([&] { return !router_->ready(); }));
    ExpectIdle();
  }
}

TEST_F(RouterIntegration, ASilentWorkerIsDeadAfterTheHeartbeatLimit) {
  RouterLimits limits;
  limits.heartbeat_interval = milliseconds(100);
  limits.heartbeat_limit = milliseconds(500);
  StartWithWorker({}, limits);
  grpc::ClientContext context;
  auto reader = stub_->StreamGenerate(&context, TextRequest("x", 9'000));
  v1::StreamGenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  worker_->set_silent(true);
  const TimePoint silent = Clock::Real()->Now();
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(ToSeconds(Clock::Real()->Now() - silent), 2.5);
  worker_->set_silent(false);
  // The client may hear of the death before the readiness of the model follows.
  EXPECT_TRUE(Eventually([&] { return Stream(TextRequest("x", 3)).text == "abc"; }));
  ExpectIdle();
}

TEST_F(RouterIntegration, TooManyCallsAreRefusedWithAHint) {
  RouterLimits limits;
  limits.calls_max = 2;
  StartWithWorker({}, limits);
  worker_->set_paused(true);
  grpc::ClientContext c1;
  grpc::ClientContext c2;
  auto first = stub_->StreamGenerate(&c1, TextRequest("x", 10));
  auto second = stub_->StreamGenerate(&c2, TextRequest("x", 10));
  ASSERT_TRUE(Eventually([&] { return router_->snapshot().open_calls == 2; }));
  const StreamResult third = Stream(TextRequest("x", 10));
  EXPECT_EQ(third.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(rpc::RetryDelay(rpc::FromGrpcStatus(third.status)).has_value());
  c1.TryCancel();
  c2.TryCancel();
  worker_->set_paused(false);
  ExpectIdle();
}

TEST_F(RouterIntegration, ADrainRefusesNewRequestsAndFinishesRunningOnes) {
  StartWithWorker({.step = milliseconds(5)});
  StreamResult running;
  std::thread thread([&] { running = Stream(TextRequest("x", 50)); });
  ASSERT_TRUE(Eventually([&] { return worker_->sequences() == 1; }));
  router_->BeginDrain();
  EXPECT_FALSE(router_->ready());
  EXPECT_EQ(Stream(TextRequest("x", 3)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  router_->Shutdown(Clock::Real()->Now() + seconds(20));
  thread.join();
  EXPECT_TRUE(running.status.ok()) << running.status.error_message();
  EXPECT_EQ(running.token_ids.size(), 50u);
  EXPECT_EQ(router_->snapshot().open_calls, 0);
}

TEST_F(RouterIntegration, AShutdownEndsWhatIsLeftWithUnavailable) {
  StartWithWorker();
  worker_->set_paused(true);
  StreamResult running;
  std::thread thread([&] { running = Stream(TextRequest("x", 50)); });
  ASSERT_TRUE(Eventually([&] { return worker_->sequences() == 1; }));
  router_->Shutdown(Clock::Real()->Now() + milliseconds(50));
  thread.join();
  EXPECT_EQ(running.status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RouterCreate, RefusesBadOptions) {
  const auto code = [](RouterOptions options) {
    return Router::Create(std::move(options)).status().code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  RouterOptions repeated;
  repeated.workers = {{"127.0.0.1:1", nullptr}, {"127.0.0.1:1", nullptr}};
  EXPECT_EQ(code(repeated), absl::StatusCode::kInvalidArgument);
  RouterOptions malformed;
  malformed.workers = {{"not an address", nullptr}};
  EXPECT_EQ(code(malformed), absl::StatusCode::kInvalidArgument);
  RouterOptions limits;
  limits.workers = {{"127.0.0.1:1", nullptr}};
  limits.limits.queue_max = 0;
  EXPECT_EQ(code(limits), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::router
