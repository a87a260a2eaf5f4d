// Goal: a router session does what session.proto says, and ends when it should. Method: a real
// server in this process, an engine loop that records its commands.
#include "worker/session_service.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/rpc/in_process_server.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class RecordingLoop : public EngineLoop {
 public:
  absl::Status Enqueue(Command command) override {
    MutexLock lock(mutex_);
    if (refuse_ && std::holds_alternative<StartSequence>(command)) {
      return absl::ResourceExhaustedError("command queue is full");
    }
    commands_.push_back(std::move(command));
    return absl::OkStatus();
  }
  LoopLoad load() const override {
    LoopLoad load;
    load.model = "m";
    load.free_blocks = 12;
    return load;
  }
  bool idle() const override { return true; }
  void Stop() override {}

  void set_refuse(bool refuse) {
    MutexLock lock(mutex_);
    refuse_ = refuse;
  }
  // Waits up to 5 s for the n-th command.
  Command At(size_t n) {
    for (int i = 0; i < 500; ++i) {
      {
        MutexLock lock(mutex_);
        if (commands_.size() > n) return commands_[n];
        changed_.WaitFor(mutex_, milliseconds(10));
      }
    }
    ADD_FAILURE() << "command " << n << " did not come";
    return BeginDrain{};
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Command> commands_ GUARDED_BY(mutex_);
  bool refuse_ GUARDED_BY(mutex_) = false;
};

class SessionServiceTest : public testing::Test {
 protected:
  SessionServiceTest() {
    SessionServiceOptions options;
    options.role = v1::WORKER_ROLE_DECODE;
    options.instance_id = 99;
    options.queue_frames_max = 64;
    options.sessions_max = 2;
    service_ = std::make_unique<SessionService>(std::move(options));
    v1::ModelDescription model;
    model.set_name("m");
    model.set_revision("r1");
    service_->AddModel(model, &loop_);
    service_->set_addresses("worker:1", "worker:1");
    server_ = std::make_unique<rpc::InProcessServer>(std::vector<grpc::Service*>{service_.get()});
    stub_ = v1::WorkerService::NewStub(server_->Channel());
  }

  ~SessionServiceTest() override {
    service_->Shutdown();
    server_->Shutdown(seconds(2));
    EXPECT_EQ(service_->num_sessions(), 0u);
  }

  using Stream = grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>;

  std::unique_ptr<Stream> Open(grpc::ClientContext& context, uint32_t limit_ms = 60000) {
    auto stream = stub_->Session(&context);
    v1::SessionRequest hello;
    hello.mutable_hello()->set_protocol_version(kSessionProtocolVersion);
    hello.mutable_hello()->set_router_id("test");
    hello.mutable_hello()->set_heartbeat_interval_ms(50);
    hello.mutable_hello()->set_heartbeat_limit_ms(limit_ms);
    EXPECT_TRUE(stream->Write(hello));
    return stream;
  }

  // The next frame that is no heartbeat.
  static v1::SessionResponse Next(Stream& stream) {
    v1::SessionResponse response;
    while (stream.Read(&response)) {
      if (!response.has_heartbeat()) return response;
    }
    return {};
  }

  static v1::SessionRequest Start(uint64_t request_id) {
    v1::SessionRequest request;
    auto& start = *request.mutable_start();
    start.set_request_id(request_id);
    start.set_mode(v1::START_MODE_GENERATE);
    start.set_model("m");
    start.set_model_revision("r1");
    start.add_token_ids(1);
    start.set_num_prompt_tokens(1);
    start.set_max_tokens(3);
    start.mutable_sampling()->set_top_p(1);
    return request;
  }

  RecordingLoop loop_;
  std::unique_ptr<SessionService> service_;
  std::unique_ptr<rpc::InProcessServer> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

TEST_F(SessionServiceTest, GreetsWithItsModelsAndSendsHeartbeatsWithLoads) {
  grpc::ClientContext context;
  auto stream = Open(context);
  const v1::SessionResponse hello = Next(*stream);
  ASSERT_TRUE(hello.has_hello());
  EXPECT_EQ(hello.hello().instance_id(), 99u);
  EXPECT_EQ(hello.hello().transfer_address(), "worker:1");
  ASSERT_EQ(hello.hello().models_size(), 1);
  v1::SessionResponse beat;
  ASSERT_TRUE(stream->Read(&beat));
  ASSERT_TRUE(beat.has_heartbeat());
  EXPECT_EQ(beat.heartbeat().loads(0).free_blocks(), 12u);
  context.TryCancel();
}

TEST_F(SessionServiceTest, CommandsReachTheLoopAndEventsComeBack) {
  grpc::ClientContext context;
  auto stream = Open(context);
  ASSERT_TRUE(Next(*stream).has_hello());
  ASSERT_TRUE(stream->Write(Start(5)));
  const auto start = std::get<StartSequence>(loop_.At(0));
  EXPECT_EQ(start.key.request_id, RequestId(5));

  v1::SessionRequest credits;
  credits.mutable_credits()->set_request_id(5);
  credits.mutable_credits()->set_credits(10);
  ASSERT_TRUE(stream->Write(credits));
  EXPECT_EQ(std::get<GrantCredits>(loop_.At(1)).credits, 10u);

  StepOutput output;
  output.session = start.key.session;
  output.model = "m";
  output.reserved.push_back({start.key});
  output.tokens.push_back({start.key, 0, {.token_id = 8, .top_logprobs = {}}});
  SequenceEnd end;
  end.key = start.key;
  end.reason = EndReason::kLength;
  output.ends.push_back(end);
  service_->OnStepOutput(output);
  EXPECT_EQ(Next(*stream).reserved().request_id(), 5u);
  const v1::SessionResponse step = Next(*stream);
  EXPECT_EQ(step.step().tokens(0).token_id(), 8);
  EXPECT_EQ(step.step().ends(0).reason(), v1::END_REASON_LENGTH);

  // The sequence has ended: a late cancel is answered here and does not reach the loop.
  v1::SessionRequest cancel;
  cancel.mutable_cancel()->set_request_id(5);
  ASSERT_TRUE(stream->Write(cancel));
  EXPECT_EQ(Next(*stream).step().ends(0).reason(), v1::END_REASON_CANCELLED);
  context.TryCancel();
}

TEST_F(SessionServiceTest, RefusalsAreEndsThatNameTheCause) {
  grpc::ClientContext context;
  auto stream = Open(context);
  ASSERT_TRUE(Next(*stream).has_hello());
  v1::SessionRequest request = Start(1);
  request.mutable_start()->set_model("other");
  ASSERT_TRUE(stream->Write(request));
  EXPECT_EQ(Next(*stream).step().ends(0).status_code(), grpc::StatusCode::NOT_FOUND);
  request = Start(2);
  request.mutable_start()->set_model_revision("r2");
  ASSERT_TRUE(stream->Write(request));
  const v1::SessionResponse revision = Next(*stream);
  EXPECT_EQ(revision.step().ends(0).status_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(revision.step().ends(0).message().find("r2"), std::string::npos);
  request = Start(3);
  request.mutable_start()->set_max_tokens(0);
  ASSERT_TRUE(stream->Write(request));
  EXPECT_EQ(Next(*stream).step().ends(0).status_code(), grpc::StatusCode::INVALID_ARGUMENT);
  loop_.set_refuse(true);
  ASSERT_TRUE(stream->Write(Start(4)));
  const v1::SessionResponse full = Next(*stream);
  EXPECT_EQ(full.step().ends(0).status_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(full.step().ends(0).retryable());
  context.TryCancel();
}

TEST_F(SessionServiceTest, ASilentRouterIsCutAndItsSequencesAreCancelled) {
  grpc::ClientContext context;
  auto stream = Open(context, /*limit_ms=*/200);
  ASSERT_TRUE(Next(*stream).has_hello());
  ASSERT_TRUE(stream->Write(Start(1)));
  std::get<StartSequence>(loop_.At(0));
  v1::SessionResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(std::holds_alternative<SessionEnded>(loop_.At(1)));
}

TEST_F(SessionServiceTest, ARouterThatDoesNotReadIsCutInsteadOfFillingMemory) {
  grpc::ClientContext context;
  auto stream = Open(context);
  ASSERT_TRUE(Next(*stream).has_hello());
  ASSERT_TRUE(stream->Write(Start(1)));
  const auto start = std::get<StartSequence>(loop_.At(0));
  StepOutput output;
  output.session = start.key.session;
  TokenOutput token;
  token.key = start.key;
  token.token.top_logprobs.resize(20);
  output.tokens.assign(1000, token);
  for (int i = 0; i < 1000 && service_->num_sessions() > 0; ++i) service_->OnStepOutput(output);
  EXPECT_TRUE(std::holds_alternative<SessionEnded>(loop_.At(1)));
  context.TryCancel();
}

TEST_F(SessionServiceTest, TheFirstFrameMustBeAHelloOfThisVersion) {
  {
    grpc::ClientContext context;
    auto stream = stub_->Session(&context);
    stream->Write(Start(1));
    v1::SessionResponse response;
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  grpc::ClientContext context;
  auto stream = stub_->Session(&context);
  v1::SessionRequest hello;
  hello.mutable_hello()->set_protocol_version(7);
  stream->Write(hello);
  v1::SessionResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(status.error_message().find("version 7"), std::string::npos);
}

TEST_F(SessionServiceTest, SessionsBeyondTheLimitAreRefused) {
  grpc::ClientContext a, b, c;
  auto first = Open(a);
  auto second = Open(b);
  ASSERT_TRUE(Next(*first).has_hello());
  ASSERT_TRUE(Next(*second).has_hello());
  auto third = stub_->Session(&c);
  v1::SessionResponse response;
  EXPECT_FALSE(third->Read(&response));
  EXPECT_EQ(third->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  a.TryCancel();
  b.TryCancel();
}

TEST_F(SessionServiceTest, DrainIsAnnouncedToOldAndNewSessions) {
  grpc::ClientContext a;
  auto first = Open(a);
  ASSERT_TRUE(Next(*first).has_hello());
  service_->BeginDrain();
  EXPECT_TRUE(Next(*first).has_draining());
  EXPECT_TRUE(std::holds_alternative<BeginDrain>(loop_.At(0)));
  grpc::ClientContext b;
  auto second = Open(b);
  ASSERT_TRUE(Next(*second).has_hello());
  EXPECT_TRUE(Next(*second).has_draining());
  a.TryCancel();
  b.TryCancel();
}

// A drained worker says its last tokens and leaves at once: they must not be lost with it.
TEST_F(SessionServiceTest, ShutdownDeliversWhatIsQueued) {
  grpc::ClientContext context;
  auto stream = Open(context);
  ASSERT_TRUE(Next(*stream).has_hello());
  ASSERT_TRUE(stream->Write(Start(1)));
  const auto start = std::get<StartSequence>(loop_.At(0));
  StepOutput output;
  output.session = start.key.session;
  output.model = "m";
  for (uint32_t i = 0; i < 50; ++i) {
    output.tokens = {{start.key, i, {.token_id = 1, .top_logprobs = {}}}};
    service_->OnStepOutput(output);
  }
  std::thread shutdown([this] { service_->Shutdown(); });
  uint32_t seen = 0;
  v1::SessionResponse response;
  while (stream->Read(&response)) seen += static_cast<uint32_t>(response.step().tokens_size());
  shutdown.join();
  EXPECT_EQ(seen, 50u);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(SessionServiceTest, ArtifactsComeInChunksByDigest) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / "session_service_artifacts";
  std::filesystem::create_directories(dir);
  const std::string bytes(kArtifactChunkBytes + 1000, 'x');
  std::ofstream(dir / "tokenizer.json") << bytes;
  ArtifactStore store;
  const auto artifacts = store.AddModelDirectory(dir.string());
  ASSERT_TRUE(artifacts.ok()) << artifacts.status();
  ASSERT_EQ(artifacts->size(), 1u);
  EXPECT_EQ((*artifacts)[0].digest(), Sha256(bytes));
  service_->set_artifacts(&store);

  grpc::ClientContext context;
  auto stream = Open(context);
  ASSERT_TRUE(Next(*stream).has_hello());
  std::string got;
  while (got.size() < bytes.size()) {
    v1::SessionRequest fetch;
    fetch.mutable_fetch_artifact()->set_digest((*artifacts)[0].digest());
    fetch.mutable_fetch_artifact()->set_offset(static_cast<int64_t>(got.size()));
    ASSERT_TRUE(stream->Write(fetch));
    const v1::SessionResponse chunk = Next(*stream);
    ASSERT_TRUE(chunk.has_artifact());
    ASSERT_LE(chunk.artifact().data().size(), static_cast<size_t>(kArtifactChunkBytes));
    ASSERT_FALSE(chunk.artifact().data().empty());
    got += chunk.artifact().data();
  }
  EXPECT_EQ(got, bytes);
  v1::SessionRequest unknown;
  unknown.mutable_fetch_artifact()->set_digest("nonsense");
  ASSERT_TRUE(stream->Write(unknown));
  EXPECT_TRUE(Next(*stream).artifact().unknown());
  context.TryCancel();
}

TEST(ArtifactStore, NamesADirectoryWithoutATokenizer) {
  ArtifactStore store;
  const auto artifacts = store.AddModelDirectory("/nonexistent-model");
  EXPECT_EQ(artifacts.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(artifacts.status().message().find("tokenizer.json"), absl::string_view::npos);
}

}  // namespace
}  // namespace baton::worker
