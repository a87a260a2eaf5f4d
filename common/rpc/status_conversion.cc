#include "common/rpc/status_conversion.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "google/rpc/status.pb.h"

namespace baton::rpc {
namespace {

constexpr size_t kMessageBytesMax = 4096;
// Details beyond this are left out: the client still gets code and message.
constexpr size_t kDetailsBytesMax = 2048;
constexpr int kCodeMax = 16;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  std::string message(status.message().substr(0, kMessageBytesMax));
  google::rpc::Status details;
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& value) {
    auto* any = details.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(value));
  });
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  std::string bytes = details.SerializeAsString();
  if (bytes.size() > kDetailsBytesMax) {
    details.clear_message();
    bytes = details.SerializeAsString();
  }
  if (bytes.size() > kDetailsBytesMax) bytes.clear();
  return grpc::Status(code, message, bytes);
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  absl::Status result(code > 0 && code <= kCodeMax ? static_cast<absl::StatusCode>(code)
                                                   : absl::StatusCode::kUnknown,
                      status.error_message());
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const auto& any : details.details()) {
      result.SetPayload(any.type_url(), absl::Cord(any.value()));
    }
  }
  return result;
}

}  // namespace baton::rpc
