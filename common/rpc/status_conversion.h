// absl::Status to grpc::Status and back, with error details: payloads of the absl::Status travel as
// google.rpc.Status in the `grpc-status-details-bin` trailer. Thread-safe.
#ifndef BATON_COMMON_RPC_STATUS_CONVERSION_H_
#define BATON_COMMON_RPC_STATUS_CONVERSION_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton::rpc {

// The same code and message. Messages are cut at 4 KiB: a trailer above gRPC's metadata limit would
// reach the client as another error.
grpc::Status ToGrpcStatus(const absl::Status& status);

// A code outside google.rpc.Code becomes UNKNOWN. Details that cannot be read are dropped.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_STATUS_CONVERSION_H_
