// Channels to other processes, with the settings that match RpcServer: keepalive that it permits,
// no proxy from the environment, quick reconnection.
#ifndef BATON_COMMON_RPC_CHANNEL_H_
#define BATON_COMMON_RPC_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace baton::rpc {

struct ChannelOptions {
  // 0: no pings. Below kClientPingIntervalMin (server.h) the server hangs up.
  Duration keepalive_interval = std::chrono::seconds(20);
  Duration keepalive_limit = std::chrono::seconds(10);
  // Longest pause between attempts to connect.
  Duration reconnect_max = std::chrono::seconds(2);
  // Own connection instead of one shared with other channels to the same address.
  bool own_connection = true;
};

// Connects lazily; a server that is not there yet is no error here. `address` is HOST:PORT.
// ERRORS: InvalidArgument: the address.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(absl::string_view address,
                                                           const ChannelOptions& options = {});

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_CHANNEL_H_
