#include "router/service/raw_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include "common/rpc/error_details.h"

namespace baton::router {

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* out) {
  grpc::ByteBuffer copy(bytes);  // Shares the slices; parsing consumes the buffer.
  const grpc::Status status =
      grpc::SerializationTraits<google::protobuf::Message>::Deserialize(&copy, out);
  if (status.ok()) return absl::OkStatus();
  return rpc::InvalidFieldError("request", "cannot be parsed: malformed message or invalid UTF-8");
}

absl::Status SerializeResponse(const google::protobuf::Message& message, grpc::ByteBuffer* out) {
  bool own_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, out, &own_buffer);
  return status.ok() ? absl::OkStatus() : absl::InternalError("the answer is too large");
}

}  // namespace baton::router
