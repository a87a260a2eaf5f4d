// `baton router`: the front of a cluster.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/daemon.h"
#include "cli/exit_codes.h"
#include "cli/router_flags.h"
#include "common/base/status_macros.h"
#include "common/rpc/ready_line.h"
#include "common/rpc/server.h"

namespace baton::cli {
namespace {

struct RouterCommandFlags {
  DaemonFlags daemon;
  RouterFlags router;
  std::vector<std::string> workers;
};

absl::Status RunRouter(const RouterCommandFlags& flags) {
  RETURN_IF_ERROR(ApplyLogLevel(flags.daemon));
  StopSignal stop;
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessMetricsPage> metrics,
                   ProcessMetricsPage::Start(flags.daemon.metrics));
  std::vector<router::WorkerEndpoint> workers;
  for (const std::string& address : flags.workers) workers.push_back({address, nullptr});
  ASSIGN_OR_RETURN(std::unique_ptr<RouterFront> front,
                   RouterFront::Start(flags.router, std::move(workers), flags.daemon.listen,
                                      metrics->registry()));
  rpc::PrintReadyLine("router", {{"listen", front->address()}, {"metrics", metrics->address()}});
  const absl::Status failure = stop.Wait();
  front->Drain(Grace(flags.daemon));
  return failure;
}

}  // namespace

void AddRouterCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<RouterCommandFlags>();
  CLI::App* command =
      app.add_subcommand("router", "Serve the public API in front of prefill and decode workers");
  AddDaemonFlags(*command, flags->daemon, "127.0.0.1:8500", "127.0.0.1:9500");
  command->add_option("--workers", flags->workers, "Addresses of the workers: HOST:PORT,HOST:PORT")
      ->delimiter(',')
      ->required();
  AddRouterFlags(*command, flags->router);
  command->callback([flags, exit_code] {
    const absl::Status status = RunRouter(*flags);
    *exit_code = status.ok() ? kExitOk : StartFailed("router", status);
  });
}

}  // namespace baton::cli
