// What the client commands share: the endpoint flag, the channel, and errors on stderr.
#ifndef BATON_CLI_CLIENT_H_
#define BATON_CLI_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "baton/v1/generation.grpc.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

inline constexpr char kDefaultEndpoint[] = "127.0.0.1:8500";

struct ClientFlags {
  std::string endpoint = kDefaultEndpoint;
  double timeout_seconds = 0;  // 0: none.
};

void AddClientFlags(CLI::App& command, ClientFlags& flags);

std::unique_ptr<v1::GenerationService::Stub> Connect(const ClientFlags& flags);

// Sets the deadline of --timeout.
void PrepareContext(const ClientFlags& flags, grpc::ClientContext& context);

// Prints "baton: <command>: CODE: message" to stderr unless OK and returns the exit code.
int ReportStatus(absl::string_view command, const absl::Status& status);

}  // namespace baton::cli

#endif  // BATON_CLI_CLIENT_H_
