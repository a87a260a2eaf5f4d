// Malformed and hostile requests over the wire: the status names the field, nothing of the
// request's bytes comes back, and the next request is served.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "router/null_metrics.h"
#include "router/testing/router_fixture.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A length-delimited field with arbitrary bytes.
std::string Field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (size_t n = bytes.size(); true; n >>= 7) {
    out.push_back(static_cast<char>(n < 0x80 ? n : (n & 0x7F) | 0x80));
    if (n < 0x80) break;
  }
  return out + bytes;
}

class BadInput : public RouterFixture {
 protected:
  // Sends `bytes` as the request of `method`, as no generated client would.
  grpc::Status Raw(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(NewChannel());
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, absl::StrCat("/baton.v1.GenerationService/", method), {}, &request,
                   &response, [&done](const grpc::Status& status) { done.set_value(status); });
    return done.get_future().get();
  }
  void ExpectServes() { EXPECT_EQ(Stream(TextRequest("x", 3)).text, "abc"); }
  static void ExpectCleanText(const grpc::Status& status) {
    EXPECT_LT(status.error_message().size(), 1000u);
    for (const char c : status.error_message()) {
      EXPECT_TRUE(c >= 0x20 && c < 0x7F) << "raw byte in: " << status.error_message();
    }
  }
};

TEST_F(BadInput, InvalidUtf8AndBrokenMessagesAreInvalidArgument) {
  StartWithWorker();
  const std::vector<std::string> bad_bytes = {std::string("\xFF\xFE\x00\xC3", 4), "\xED\xA0\x80",
                                              "\xC3"};
  std::vector<std::string> messages = {"\xFF\xFF\xFF\xFF", std::string(1, '\x12'),
                                       Field(2, "x").substr(0, 2), std::string(1000, '\x0B')};
  for (const std::string& bytes : bad_bytes) {
    messages.push_back(Field(2, bytes));                            // text
    messages.push_back(Field(1, bytes) + Field(2, "x"));            // model
    messages.push_back(Field(7, Field(2, bytes)) + Field(2, "x"));  // stop.stop_strings
    messages.push_back(Field(9, bytes) + Field(2, "x"));            // client_request_id
  }
  for (const std::string& message : messages) {
    for (const char* method : {"Generate", "StreamGenerate"}) {
      const grpc::Status status = Raw(method, message);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
          << method << ": " << status.error_message();
      ExpectCleanText(status);
    }
  }
  EXPECT_EQ(Raw("Tokenize", Field(2, bad_bytes[0])).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Raw("Detokenize", Field(1, bad_bytes[1])).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Raw("ListModels", "\xFF").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Raw("NoSuchMethod", "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  ExpectServes();
  ExpectIdle();
}

TEST_F(BadInput, EveryBadFieldIsNamedByStreamAndUnaryCallsAlike) {
  StartWithWorker();
  struct Case {
    const char* field;
    std::function<void(v1::GenerateRequest*)> spoil;
  };
  const std::vector<Case> cases = {
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(-1); }},
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(0.0 / 0.0); }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(2); }},
      {"sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(-1); }},
      {"sampling.top_k", [](auto* r) { r->mutable_sampling()->set_top_k(-2); }},
      {"sampling.n", [](auto* r) { r->mutable_sampling()->set_n(2); }},
      {"sampling.repetition_penalty",
       [](auto* r) { r->mutable_sampling()->set_repetition_penalty(1.5); }},
      {"stop.min_tokens", [](auto* r) { r->mutable_stop()->set_min_tokens(1); }},
      {"stop.max_tokens", [](auto* r) { r->mutable_stop()->set_max_tokens(0); }},
      {"stop.max_tokens", [](auto* r) { r->mutable_stop()->set_max_tokens(1'000'000); }},
      {"stop.stop_strings", [](auto* r) { r->mutable_stop()->add_stop_strings(); }},
      {"stop.stop_strings",
       [](auto* r) {
         for (int i = 0; i < 10'000; ++i) r->mutable_stop()->add_stop_strings("stop");
       }},
      {"stop.stop_strings",
       [](auto* r) { r->mutable_stop()->add_stop_strings(std::string(1 << 20, 'x')); }},
      {"stop.stop_token_ids", [](auto* r) { r->mutable_stop()->add_stop_token_ids(300); }},
      {"logprobs.top", [](auto* r) { r->mutable_logprobs()->set_top(21); }},
      {"token_ids", [](auto* r) { r->mutable_token_ids()->add_ids(300); }},
      {"token_ids", [](auto* r) { r->mutable_token_ids(); }},
      {"input", [](auto* r) { r->clear_input(); }},
      {"client_request_id", [](auto* r) { r->set_client_request_id(std::string(300, 'x')); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = TextRequest("x", 5);
    c.spoil(&request);
    v1::GenerateResponse response;
    const grpc::Status unary = Unary(request, &response);
    EXPECT_EQ(unary.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.field;
    EXPECT_THAT(unary.error_message(), StartsWith(absl::StrCat(c.field, ":")));
    EXPECT_FALSE(unary.error_details().empty()) << "BadRequest is attached";
    const StreamResult stream = Stream(request);
    EXPECT_EQ(stream.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.field;
    EXPECT_EQ(stream.status.error_message(), unary.error_message());
    EXPECT_EQ(stream.messages, 0);
  }
  EXPECT_EQ(worker_->starts(), 0u) << "nothing was queued";
  ExpectServes();
  ExpectIdle();
}

TEST_F(BadInput, HugePromptsAreRefusedWithTheNumbers) {
  StartWithWorker({.context_tokens_max = 1000});
  // Longest token: "</s>", four bytes.
  StreamResult result = Stream(TextRequest(std::string(8 << 20, '_'), 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(), HasSubstr("8388608 bytes"));
  EXPECT_THAT(result.status.error_message(), HasSubstr("1000 tokens"));
  // Short enough to be worth tokenising, too long all the same.
  result = Stream(TextRequest(std::string(1000, 'a'), 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(), HasSubstr("1001 tokens"));
  EXPECT_THAT(result.status.error_message(), HasSubstr("1000 tokens"));
  result = Stream(TextRequest(std::string(998, 'a'), 1));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  v1::GenerateRequest ids;
  for (int i = 0; i < 1'000'000; ++i) ids.mutable_token_ids()->add_ids(1);
  EXPECT_EQ(Stream(ids).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // Beyond the server's message limit.
  result = Stream(TextRequest(std::string(17 << 20, 'a'), 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes();
  ExpectIdle();
}

TEST_F(BadInput, APromptOfContextLessOneGivesOneToken) {
  StartWithWorker({.context_tokens_max = 100});
  v1::GenerateRequest request;
  for (int i = 0; i < 99; ++i) request.mutable_token_ids()->add_ids('x');
  const StreamResult result = Stream(request);
  EXPECT_EQ(result.token_ids.size(), 1u);
  EXPECT_EQ(result.finish.reason(), v1::FINISH_REASON_LENGTH);
  request.mutable_token_ids()->add_ids('x');
  EXPECT_EQ(Stream(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(BadInput, TextCallsAreBounded) {
  RouterLimits limits;
  limits.tokenize_bytes_max = 1000;
  limits.detokenize_ids_max = 10;
  StartWithWorker({}, limits);
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(1001, 'x'));
  v1::TokenizeResponse tokens;
  grpc::ClientContext c1;
  EXPECT_EQ(stub_->Tokenize(&c1, tokenize, &tokens).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::DetokenizeRequest detokenize;
  for (int i = 0; i < 11; ++i) detokenize.mutable_token_ids()->add_ids('x');
  v1::DetokenizeResponse text;
  grpc::ClientContext c2;
  EXPECT_EQ(stub_->Detokenize(&c2, detokenize, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  detokenize.mutable_token_ids()->clear_ids();
  detokenize.mutable_token_ids()->add_ids(-1);
  grpc::ClientContext c3;
  EXPECT_THAT(stub_->Detokenize(&c3, detokenize, &text).error_message(), HasSubstr("token id -1"));
  detokenize.set_model("other");
  grpc::ClientContext c4;
  EXPECT_EQ(stub_->Detokenize(&c4, detokenize, &text).error_code(), grpc::StatusCode::NOT_FOUND);
  ExpectIdle();
}

// Records which label values are used.
class LabelRecorder final : public NullMetrics {
 public:
  void RequestEnded(absl::string_view model, absl::string_view code, double) override {
    MutexLock lock(mutex_);
    labels_.insert(absl::StrCat(model, "/", code));
    ++ended_;
  }

  std::set<std::string> labels() {
    MutexLock lock(mutex_);
    return labels_;
  }
  int ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

 private:
  Mutex mutex_;
  std::set<std::string> labels_ GUARDED_BY(mutex_);
  int ended_ GUARDED_BY(mutex_) = 0;
};

TEST_F(BadInput, UnknownModelsAreNotFoundAndShareOneLabel) {
  LabelRecorder metrics;
  worker_ = std::make_unique<FakeWorker>(FakeWorkerOptions{});
  StartRouter({{"w", worker_->Channel()}}, {}, &metrics);
  WaitReady();
  for (int i = 0; i < 500; ++i) {
    v1::GenerateRequest request = TextRequest("x", 3);
    request.set_model(i == 0 ? std::string(1 << 20, 'x') : absl::StrCat("model \"\\\n", i));
    const StreamResult result = Stream(request);
    ASSERT_EQ(result.status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(result.status.error_message(), HasSubstr("served: \"m\""));
    ExpectCleanText(result.status);
  }
  ExpectServes();
  ExpectIdle();
  EXPECT_EQ(metrics.labels(), (std::set<std::string>{"unknown/NOT_FOUND", "m/OK"}));
  EXPECT_EQ(metrics.ended(), 501) << "every call is counted once";
  StopServer();
  router_ = nullptr;
}

}  // namespace
}  // namespace baton::router
