// `baton inspect`: what a model file or directory holds, from its headers, without loading it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "engine/weights/inspect.h"

namespace baton::cli {
namespace {

struct InspectFlags {
  std::string path;
  bool json = false;
};

int RunInspect(const InspectFlags& flags) {
  std::error_code error;
  if (!std::filesystem::exists(flags.path, error)) {
    return ReportStatus("inspect", absl::NotFoundError(absl::StrCat(flags.path, ": no such file")));
  }
  const absl::StatusOr<InspectReport> report = InspectModel(flags.path);
  if (!report.ok()) return ReportStatus("inspect", report.status());
  std::fputs((flags.json ? report->ToJson() + "\n" : report->ToText()).c_str(), stdout);
  // The report is worth reading even so; the exit code says that the model would not load.
  return report->tensors_valid.ok() ? kExitOk : ReportStatus("inspect", report->tensors_valid);
}

}  // namespace

void AddInspectCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "Show what a model file or directory holds");
  command->add_option("path", flags->path, "Model directory or .safetensors file")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(kExitCodesHelp);
  command->callback([flags, exit_code] { *exit_code = RunInspect(*flags); });
}

}  // namespace baton::cli
