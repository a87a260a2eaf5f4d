// `baton`: one program, three roles, and their tools.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/commands.h"
#include "cli/exit_codes.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Baton serves large language models over gRPC with prefill and decode on separate workers."};
  app.set_version_flag("--version", "baton " BATON_VERSION);
  app.get_formatter()->column_width(38);
  app.option_defaults()->always_capture_default();

  int exit_code = baton::cli::kExitOk;
  baton::cli::AddServeCommand(app, &exit_code);
  baton::cli::AddRouterCommand(app, &exit_code);
  baton::cli::AddPrefillWorkerCommand(app, &exit_code);
  baton::cli::AddDecodeWorkerCommand(app, &exit_code);
  baton::cli::AddGenerateCommand(app, &exit_code);
  baton::cli::AddModelsCommand(app, &exit_code);
  baton::cli::AddTokenizeCommand(app, &exit_code);
  baton::cli::AddInspectCommand(app, &exit_code);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? baton::cli::kExitOk : baton::cli::kExitUsage;
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return baton::cli::kExitUsage;
  }
  return exit_code;
}
