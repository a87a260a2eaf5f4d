// The subcommands of `baton`. Each Add… function declares its flags on `app` and arranges that
// `*exit_code` is set when the subcommand has run.
#ifndef BATON_CLI_COMMANDS_H_
#define BATON_CLI_COMMANDS_H_

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

void AddServeCommand(CLI::App& app, int* exit_code);
void AddRouterCommand(CLI::App& app, int* exit_code);
void AddPrefillWorkerCommand(CLI::App& app, int* exit_code);
void AddDecodeWorkerCommand(CLI::App& app, int* exit_code);
void AddGenerateCommand(CLI::App& app, int* exit_code);
void AddModelsCommand(CLI::App& app, int* exit_code);
void AddTokenizeCommand(CLI::App& app, int* exit_code);
void AddInspectCommand(CLI::App& app, int* exit_code);

}  // namespace baton::cli

#endif  // BATON_CLI_COMMANDS_H_
