#include "cli/client.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/exit_codes.h"

namespace baton::cli {

void AddClientFlags(CLI::App& command, ClientFlags& flags) {
  command.add_option("--endpoint", flags.endpoint, "Router to talk to, HOST:PORT");
  command
      .add_option("--timeout", flags.timeout_seconds,
                  "Seconds until the call is given up; 0: never")
      ->check(CLI::Range(0.0, 1e6));
  command.footer(kExitCodesHelp);
}

std::unique_ptr<v1::GenerationService::Stub> Connect(const ClientFlags& flags) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return v1::GenerationService::NewStub(
      grpc::CreateCustomChannel(flags.endpoint, grpc::InsecureChannelCredentials(), arguments));
}

void PrepareContext(const ClientFlags& flags, grpc::ClientContext& context) {
  if (flags.timeout_seconds > 0) {
    context.set_deadline(gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_micros(static_cast<int64_t>(flags.timeout_seconds * 1e6), GPR_TIMESPAN)));
  }
}

int ReportStatus(absl::string_view command, const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "baton: %s: %s\n", std::string(command).c_str(),
                 status.ToString().c_str());
  }
  return ExitCode(status);
}

}  // namespace baton::cli
