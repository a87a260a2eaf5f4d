// The server shell over real sockets: ports, health, reflection, limits, keepalive, shutdown.
#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"
#include "baton/v1/generation.grpc.pb.h"
#include "common/rpc/channel.h"

namespace baton::rpc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kServiceName[] = "baton.v1.GenerationService";

// Tokenize answers with the number of bytes; StreamGenerate stays open until it is cancelled.
class FakeService final : public baton::v1::GenerationService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const baton::v1::TokenizeRequest* request,
                                     baton::v1::TokenizeResponse* response) override {
    response->add_token_ids(static_cast<int32_t>(request->text().size()));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<baton::v1::StreamGenerateResponse>* StreamGenerate(
      grpc::CallbackServerContext*, const baton::v1::GenerateRequest*) override {
    class Reactor final : public grpc::ServerWriteReactor<baton::v1::StreamGenerateResponse> {
     public:
      explicit Reactor(FakeService* service) : service_(service) {
        StartSendInitialMetadata();
        ++service_->streams_started;
      }
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override {
        ++service_->streams_done;
        delete this;  // NOLINT(banned-new): gRPC's ownership of reactors
      }

     private:
      FakeService* service_;
    };
    return new Reactor(this);  // NOLINT(banned-new): gRPC's ownership of reactors
  }

  std::atomic<int> streams_started{0};
  std::atomic<int> streams_done{0};
};

std::unique_ptr<RpcServer> StartServer(FakeService& service, RpcServerOptions options = {}) {
  auto server = RpcServer::Start(options, {&service}, {kServiceName});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

std::shared_ptr<grpc::Channel> Connect(const RpcServer& server) {
  auto channel = MakeChannel(server.address().ToString());
  EXPECT_TRUE(channel.ok()) << channel.status();
  return *std::move(channel);
}

void SetTimeout(grpc::ClientContext& context, Duration timeout) {
  gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                       gpr_time_from_nanos(timeout.count(), GPR_TIMESPAN));
  context.set_deadline(deadline);
}

absl::StatusOr<int> Tokenize(const std::shared_ptr<grpc::Channel>& channel, size_t bytes) {
  auto stub = baton::v1::GenerationService::NewStub(channel);
  grpc::ClientContext context;
  SetTimeout(context, seconds(10));
  baton::v1::TokenizeRequest request;
  request.set_text(std::string(bytes, 'x'));
  baton::v1::TokenizeResponse response;
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  return response.token_ids(0);
}

// One unary call with bytes in and out: Debian has no compiled health or reflection stubs.
absl::StatusOr<std::string> RawCall(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& method, const std::string& request_bytes) {
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  grpc::ClientContext context;
  SetTimeout(context, seconds(10));
  grpc::Slice slice(request_bytes);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(response.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& part : slices) {
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

// grpc.health.v1: request { string service = 1 }, response { enum status = 1: SERVING is 1,
// NOT_SERVING is 2 }.
absl::StatusOr<int> Health(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
  std::string request;
  if (!name.empty()) request = absl::StrCat("\x0a", std::string(1, char(name.size())), name);
  absl::StatusOr<std::string> response = RawCall(channel, "/grpc.health.v1.Health/Check", request);
  if (!response.ok()) return response.status();
  if (response->size() != 2 || (*response)[0] != 8)
    return absl::InternalError("not a health answer");
  return (*response)[1];
}

template <typename Predicate>
bool Eventually(Predicate predicate, Duration limit) {
  const TimePoint end = Clock::Real()->Now() + limit;
  while (Clock::Real()->Now() < end) {
    if (predicate()) return true;
    std::this_thread::yield();
  }
  return predicate();
}

TEST(RpcServer, ReportsTheRealPortAndServes) {
  FakeService service;
  auto server = StartServer(service);
  EXPECT_EQ(server->address().host, "127.0.0.1");
  EXPECT_NE(server->address().port, 0);
  EXPECT_EQ(*Tokenize(Connect(*server), 7), 7);
  EXPECT_EQ(*Tokenize(server->InProcessChannel(), 9), 9);
}

TEST(RpcServer, SaysThatThePortIsTaken) {
  FakeService service;
  auto first = StartServer(service);
  FakeService other;
  const std::string address = first->address().ToString();
  auto second = RpcServer::Start({.listen = address}, {&other}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(address), HasSubstr("in use")));
  first->Shutdown(Duration::zero());
  second = RpcServer::Start({.listen = address}, {&other}, {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->address().ToString(), address);
}

TEST(RpcServer, RefusesAnAddressThatIsNone) {
  FakeService service;
  for (const char* listen : {"", "8000", "nowhere", "unix:/tmp/x", "256.0.0.1:x"}) {
    auto server = RpcServer::Start({.listen = listen}, {&service}, {});
    ASSERT_FALSE(server.ok()) << listen;
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << server.status();
  }
}

TEST(RpcServer, WarnsBeyondLoopbackOnly) {
  FakeService service;
  testing::internal::CaptureStderr();
  {
    auto server = StartServer(service);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  {
    auto server = StartServer(service, {.listen = "0.0.0.0:0"});
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("beyond loopback"), HasSubstr("0.0.0.0:")));
}

TEST(RpcServer, HealthFollowsReadinessButLivenessDoesNot) {
  FakeService service;
  auto server = StartServer(service);
  const auto channel = Connect(*server);
  constexpr int kServing = 1;
  constexpr int kNotServing = 2;
  EXPECT_EQ(*Health(channel, ""), kServing);
  EXPECT_EQ(*Health(channel, "liveness"), kServing);
  EXPECT_EQ(*Health(channel, "readiness"), kNotServing);
  EXPECT_EQ(*Health(channel, kServiceName), kNotServing);
  server->SetReady(true);
  EXPECT_EQ(*Health(channel, "readiness"), kServing);
  EXPECT_EQ(*Health(channel, kServiceName), kServing);
  server->SetReady(false);
  EXPECT_EQ(*Health(channel, "readiness"), kNotServing);
  EXPECT_EQ(*Health(channel, "liveness"), kServing);
  EXPECT_EQ(Health(channel, "nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST(RpcServer, OffersReflection) {
  FakeService service;
  auto server = StartServer(service);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(Connect(*server));
  grpc::ClientContext context;
  SetTimeout(context, seconds(10));
  struct Reactor final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    void OnReadDone(bool) override { StartWritesDone(); }
    void OnDone(const grpc::Status& status) override { done.set_value(status); }
    std::promise<grpc::Status> done;
    grpc::ByteBuffer response;
  } reactor;
  stub.PrepareBidiStreamingCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {}, &reactor);
  const std::string list_services("\x3a\x01*", 3);  // ServerReflectionRequest.list_services = 7
  grpc::Slice slice(list_services);
  grpc::ByteBuffer request(&slice, 1);
  reactor.StartWrite(&request);
  reactor.StartRead(&reactor.response);
  reactor.StartCall();
  EXPECT_TRUE(reactor.done.get_future().get().ok());
  grpc::Slice answer;
  ASSERT_TRUE(reactor.response.DumpToSingleSlice(&answer).ok());
  const std::string text(reinterpret_cast<const char*>(answer.begin()), answer.size());
  EXPECT_THAT(text, AllOf(HasSubstr(kServiceName), HasSubstr("grpc.health.v1.Health")));
}

TEST(RpcServer, TakesMessagesUpToItsLimitAndRefusesLargerOnes) {
  FakeService service;
  auto server = StartServer(service);
  const auto channel = Connect(*server);
  EXPECT_EQ(*Tokenize(channel, 15 << 20), 15 << 20);
  EXPECT_EQ(Tokenize(channel, (16 << 20) + 1).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*Tokenize(channel, 1), 1);  // The connection survives.
}

TEST(RpcServer, ShutdownCancelsWhatIsLeftAfterTheGrace) {
  FakeService service;
  auto server = StartServer(service);
  auto stub = baton::v1::GenerationService::NewStub(Connect(*server));
  grpc::ClientContext context;
  auto stream = stub->StreamGenerate(&context, {});
  ASSERT_TRUE(Eventually([&] { return service.streams_started == 1; }, seconds(10)));
  const TimePoint start = Clock::Real()->Now();
  server->Shutdown(milliseconds(300));
  const Duration took = Clock::Real()->Now() - start;
  EXPECT_GE(took, milliseconds(250));
  EXPECT_LT(took, seconds(5));
  EXPECT_EQ(service.streams_done, 1);
  baton::v1::StreamGenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_FALSE(stream->Finish().ok());
  server->Shutdown(seconds(60));  // Idempotent.
  EXPECT_EQ(Tokenize(Connect(*server), 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST(RpcServer, ShutdownReturnsAsSoonAsNoCallIsLeft) {
  FakeService service;
  auto server = StartServer(service);
  EXPECT_EQ(*Tokenize(Connect(*server), 3), 3);
  const TimePoint start = Clock::Real()->Now();
  server->Shutdown(seconds(30));
  EXPECT_LT(Clock::Real()->Now() - start, seconds(10));
}

// A client that pings `interval` apart on an open but silent stream.
std::shared_ptr<grpc::Channel> PingingChannel(const RpcServer& server, milliseconds interval) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(interval.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, 1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server.address().ToString(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

// How a silent stream ends: by its own deadline, or because the server hung up.
grpc::Status SilentStream(const std::shared_ptr<grpc::Channel>& channel, Duration length) {
  auto stub = baton::v1::GenerationService::NewStub(channel);
  grpc::ClientContext context;
  SetTimeout(context, length);
  auto stream = stub->StreamGenerate(&context, {});
  baton::v1::StreamGenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  return stream->Finish();
}

TEST(RpcServer, LetsClientsPingOnSilentStreamsAtThePromisedRate) {
  FakeService service;
  auto server = StartServer(service, {.client_ping_interval_min = milliseconds(200)});
  const grpc::Status status =
      SilentStream(PingingChannel(*server, milliseconds(200)), milliseconds(3000));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
}

TEST(RpcServer, CutsAClientThatPingsTooOftenWithoutHarmToOthers) {
  FakeService service;
  auto server = StartServer(service);
  auto polite = std::async(std::launch::async, [&] {
    return SilentStream(PingingChannel(*server, seconds(10)), seconds(4));
  });
  const grpc::Status abusive =
      SilentStream(PingingChannel(*server, milliseconds(100)), seconds(20));
  EXPECT_EQ(abusive.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(abusive.error_message(), HasSubstr("Too many pings"));
  EXPECT_EQ(polite.get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(RpcServer, DefaultsPermitTheKeepaliveOfItsOwnChannels) {
  EXPECT_GE(ChannelOptions{}.keepalive_interval, RpcServerOptions{}.client_ping_interval_min);
  EXPECT_LE(RpcServerOptions{}.client_ping_interval_min, seconds(10));
}

size_t OpenFds() {
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(fds), end(fds)));
}

TEST(RpcServer, AcceptsAgainAfterTheProcessRanOutOfFileDescriptors) {
  FakeService service;
  auto server = StartServer(service);
  const size_t fds_before = OpenFds();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next_fd = dup(0);
  close(next_fd);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(next_fd) + 40;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(server->address().port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> connections;
  for (int fd = socket(AF_INET, SOCK_STREAM, 0); fd >= 0; fd = socket(AF_INET, SOCK_STREAM, 0)) {
    connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    connections.push_back(fd);
  }
  EXPECT_EQ(errno, EMFILE);
  std::this_thread::sleep_for(milliseconds(300));
  for (const int fd : connections) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Eventually([&] { return Tokenize(Connect(*server), 5).ok(); }, seconds(10)));
  // What the flood had opened is closed again.
  EXPECT_TRUE(Eventually([&] { return OpenFds() <= fds_before + 4; }, seconds(10))) << OpenFds();
}

TEST(Channel, RefusesAnAddressThatIsNone) {
  for (const char* address : {"", "x", "host:0", "http://host:1"}) {
    EXPECT_EQ(MakeChannel(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST(Channel, ConnectsOnceTheServerIsThere) {
  FakeService service;
  HostPort address;
  {
    auto server = StartServer(service);
    address = server->address();
  }
  auto channel = *MakeChannel(address.ToString());
  EXPECT_EQ(Tokenize(channel, 1).status().code(), absl::StatusCode::kUnavailable);
  FakeService again;
  auto server = StartServer(again, {.listen = address.ToString()});
  EXPECT_TRUE(Eventually([&] { return Tokenize(channel, 5).ok(); }, seconds(10)));
}

}  // namespace
}  // namespace baton::rpc
