#include "common/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::rpc {
namespace {

int ToMillis(Duration d) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

void EnableHealthAndReflection() {
  // Process-wide settings of gRPC, made before the first server is built and not thread-safe.
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  CHECK(done);
}

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.receive_message_bytes_max);
  grpc::ResourceQuota quota("baton");
  quota.Resize(options.buffer_bytes_max);
  quota.SetMaxThreads(options.threads_max);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.concurrent_streams_max);
  // A fifth less than what is promised: pings sent on time arrive with jitter.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             ToMillis(options.client_ping_interval_min) * 4 / 5);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ToMillis(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ToMillis(options.keepalive_limit));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, const std::vector<grpc::Service*>& services,
    const std::vector<std::string>& service_names) {
  ASSIGN_OR_RETURN(const HostPort named, ParseHostPort(options.listen, /*allow_port_zero=*/true));
  ASSIGN_OR_RETURN(const HostPort resolved, ResolveForListening(named));
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Open(resolved));
  EnableHealthAndReflection();

  grpc::ServerBuilder builder;
  SetLimits(options, builder);
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::InternalError("gRPC did not start a server");
  const HostPort& address = listener->address();
  if (!IsLoopback(address)) {
    LogWarning(
        "listening beyond loopback without TLS or authentication: anybody who can reach the "
        "address can use it",
        {{"listen", address.ToString()}});
  }
  return std::unique_ptr<RpcServer>(new RpcServer(  // NOLINT(banned-new): private constructor
      std::move(listener), std::move(acceptor), service_names, std::move(server)));
}

RpcServer::RpcServer(std::unique_ptr<Listener> listener,
                     std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
                     std::vector<std::string> service_names, std::unique_ptr<grpc::Server> server)
    : listener_(std::move(listener)),
      acceptor_(std::move(acceptor)),
      service_names_(std::move(service_names)),
      server_(std::move(server)) {
  server_->GetHealthCheckService()->SetServingStatus("", true);
  server_->GetHealthCheckService()->SetServingStatus("liveness", true);
  SetReady(false);
  listener_->Start([this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_->fd();
    connection.fd = fd;
    acceptor_->HandleNewConnection(&connection);
  });
}

RpcServer::~RpcServer() { Shutdown(Duration::zero()); }

void RpcServer::SetReady(bool ready) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("readiness", ready);
  for (const std::string& name : service_names_) health->SetServingStatus(name, ready);
}

void RpcServer::Shutdown(Duration grace) {
  MutexLock lock(mutex_);  // A second caller waits until the first is done.
  if (shut_down_) return;
  shut_down_ = true;
  SetReady(false);
  listener_->Stop();
  gpr_timespec deadline =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_nanos(std::max<int64_t>(grace.count(), 0), GPR_TIMESPAN));
  server_->Shutdown(deadline);
  server_->Wait();
}

std::shared_ptr<grpc::Channel> RpcServer::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveMessageBytesMax);
  return server_->InProcessChannel(arguments);
}

}  // namespace baton::rpc
