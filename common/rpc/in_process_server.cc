#include "common/rpc/in_process_server.h"

#include "common/base/check.h"
#include "common/rpc/server.h"

namespace baton::rpc {

InProcessServer::InProcessServer(const std::vector<grpc::Service*>& services) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kReceiveMessageBytesMax);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr) << "a server without a socket cannot fail to listen";
}

InProcessServer::~InProcessServer() { Shutdown(Duration::zero()); }

std::shared_ptr<grpc::Channel> InProcessServer::Channel() {
  return server_->InProcessChannel(grpc::ChannelArguments());
}

void InProcessServer::Shutdown(Duration grace) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
  server_->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN)));
  server_->Wait();
}

}  // namespace baton::rpc
