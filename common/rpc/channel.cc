#include "common/rpc/channel.h"

#include <algorithm>

#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/rpc/server.h"

namespace baton::rpc {
namespace {

int ToMillis(Duration d) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(absl::string_view address,
                                                           const ChannelOptions& options) {
  ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(address, /*allow_port_zero=*/false));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReceiveMessageBytesMax);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const int reconnect_max_ms = std::max(ToMillis(options.reconnect_max), 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, reconnect_max_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, reconnect_max_ms);
  if (options.keepalive_interval > Duration::zero()) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ToMillis(options.keepalive_interval));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, ToMillis(options.keepalive_limit));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    // By default a client stops after two pings without data, and sends none within five minutes.
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS,
                     ToMillis(options.keepalive_interval) / 2);
  }
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target.ToString(), grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace baton::rpc
