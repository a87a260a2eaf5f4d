// `baton models` and `baton tokenize`: what the router serves, and how it reads text.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "common/rpc/status_conversion.h"

namespace baton::cli {
namespace {

struct ModelsFlags {
  ClientFlags client;
  bool json = false;
};

int RunModels(const ModelsFlags& flags) {
  auto stub = Connect(flags.client);
  grpc::ClientContext context;
  PrepareContext(flags.client, context);
  v1::ListModelsResponse response;
  const grpc::Status status = stub->ListModels(&context, {}, &response);
  if (!status.ok()) return ReportStatus("models", rpc::FromGrpcStatus(status));
  if (flags.json) {
    nlohmann::json models = nlohmann::json::array();
    for (const auto& model : response.models()) {
      models.push_back({{"name", model.name()},
                        {"revision", model.revision()},
                        {"context_tokens_max", model.context_tokens_max()},
                        {"vocabulary_size", model.vocabulary_size()},
                        {"ready", model.ready()}});
    }
    std::printf("%s\n", models.dump(2).c_str());
    return kExitOk;
  }
  std::printf("%-28s %-7s %8s %10s  %s\n", "MODEL", "READY", "CONTEXT", "VOCABULARY", "REVISION");
  for (const auto& model : response.models()) {
    std::printf("%-28s %-7s %8lld %10lld  %.16s\n", model.name().c_str(),
                model.ready() ? "yes" : "no", static_cast<long long>(model.context_tokens_max()),
                static_cast<long long>(model.vocabulary_size()), model.revision().c_str());
  }
  return kExitOk;
}

struct TokenizeFlags {
  ClientFlags client;
  std::string model;
  std::string text;
  bool parse_special = false;
  bool no_special = false;
  bool json = false;
};

int RunTokenize(const TokenizeFlags& flags) {
  auto stub = Connect(flags.client);
  grpc::ClientContext context;
  PrepareContext(flags.client, context);
  v1::TokenizeRequest request;
  request.set_model(flags.model);
  request.set_text(flags.text == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                     : flags.text);
  if (flags.parse_special) request.set_parse_special(true);
  if (flags.no_special) request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  if (!status.ok()) return ReportStatus("tokenize", rpc::FromGrpcStatus(status));
  if (flags.json) {
    const nlohmann::json json = {{"model", response.model()}, {"token_ids", response.token_ids()}};
    std::printf("%s\n", json.dump(2).c_str());
    return kExitOk;
  }
  for (int i = 0; i < response.token_ids_size(); ++i) {
    std::printf("%8d  \"%s\"\n", response.token_ids(i),
                absl::Utf8SafeCEscape(response.tokens(i)).c_str());
  }
  return kExitOk;
}

}  // namespace

void AddModelsCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<ModelsFlags>();
  CLI::App* command = app.add_subcommand("models", "List the models that a router serves");
  AddClientFlags(*command, flags->client);
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, exit_code] { *exit_code = RunModels(*flags); });
}

void AddTokenizeCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text");
  AddClientFlags(*command, flags->client);
  command->add_option("--model", flags->model, "Model name; may be left out when one is served");
  command->add_option("text", flags->text, "The text, or - for stdin")->required();
  command->add_flag("--parse-special", flags->parse_special,
                    "Control tokens spelled in the text become those tokens");
  command->add_flag("--no-special", flags->no_special, "Do not add BOS");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, exit_code] { *exit_code = RunTokenize(*flags); });
}

}  // namespace baton::cli
