// Messages in calls whose bytes gRPC does not parse: gRPC's own parsing would answer a malformed
// request (invalid UTF-8, for instance) with UNIMPLEMENTED. Thread-safe.
#ifndef BATON_ROUTER_SERVICE_RAW_MESSAGE_H_
#define BATON_ROUTER_SERVICE_RAW_MESSAGE_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace baton::router {

// ERRORS: InvalidArgument: `bytes` is not a message of that type.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* out);

// ERRORS: Internal: beyond 2 GiB.
absl::Status SerializeResponse(const google::protobuf::Message& message, grpc::ByteBuffer* out);

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_RAW_MESSAGE_H_
