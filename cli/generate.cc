// `baton generate`: one prompt, streamed. Only the text goes to stdout; with --json one object at
// the end.
#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "common/base/clock.h"
#include "common/rpc/signal_watcher.h"
#include "common/rpc/status_conversion.h"

namespace baton::cli {
namespace {

struct GenerateFlags {
  ClientFlags client;
  std::string model;
  std::string prompt;
  std::vector<int64_t> token_ids;
  bool parse_special = false;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int64_t> logprobs;
  bool json = false;
};

v1::GenerateRequest MakeRequest(const GenerateFlags& flags, const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_model(flags.model);
  if (flags.token_ids.empty()) {
    request.set_text(prompt);
    if (flags.parse_special) request.set_parse_special(true);
  } else {
    for (const int64_t id : flags.token_ids) request.mutable_token_ids()->add_ids(id);
  }
  auto& sampling = *request.mutable_sampling();
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.seed) sampling.set_seed(*flags.seed);
  auto& stop = *request.mutable_stop();
  if (flags.max_tokens) stop.set_max_tokens(*flags.max_tokens);
  for (const std::string& text : flags.stop) stop.add_stop_strings(text);
  for (const int64_t id : flags.stop_token_ids) stop.add_stop_token_ids(id);
  if (flags.ignore_eos) stop.set_ignore_eos(true);
  if (flags.logprobs) {
    request.mutable_logprobs()->set_enabled(true);
    request.mutable_logprobs()->set_top(*flags.logprobs);
  }
  return request;
}

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return "unspecified";
  }
}

// What the stream has said so far.
struct Collected {
  std::string model;
  std::string text;
  nlohmann::json token_ids = nlohmann::json::array();
  nlohmann::json logprobs = nlohmann::json::array();
  v1::Usage usage;
  std::optional<v1::Finish> finish;
  double first_token_seconds = 0;
  double total_seconds = 0;
};

nlohmann::json LogprobJson(const v1::TokenLogprob& logprob) {
  nlohmann::json top = nlohmann::json::array();
  for (const auto& entry : logprob.top()) {
    top.push_back({{"token_id", entry.token_id()}, {"logprob", entry.logprob()}});
  }
  return {{"token_id", logprob.token_id()}, {"logprob", logprob.logprob()}, {"top", top}};
}

void Collect(const v1::StreamGenerateResponse& response, Collected& out) {
  if (!response.model().empty()) out.model = response.model();
  out.text += response.delta().text();
  for (const int32_t id : response.delta().token_ids()) out.token_ids.push_back(id);
  for (const auto& logprob : response.delta().logprobs()) {
    out.logprobs.push_back(LogprobJson(logprob));
  }
  if (response.has_usage()) out.usage = response.usage();
  if (response.has_finish()) out.finish = response.finish();
}

nlohmann::json ToJson(const Collected& out, bool with_logprobs) {
  nlohmann::json json = {
      {"model", out.model},
      {"text", out.text},
      {"token_ids", out.token_ids},
      {"usage",
       {{"prompt_tokens", out.usage.prompt_tokens()},
        {"completion_tokens", out.usage.completion_tokens()},
        {"cached_tokens", out.usage.cached_tokens()}}},
  };
  if (with_logprobs) json["logprobs"] = out.logprobs;
  const v1::Finish& finish = *out.finish;
  json["finish_reason"] = ReasonName(finish.reason());
  if (finish.has_stop_string()) json["matched"] = {{"stop_string", finish.stop_string()}};
  if (finish.has_stop_token_id()) json["matched"] = {{"stop_token_id", finish.stop_token_id()}};
  if (finish.has_eos_token_id()) json["matched"] = {{"eos_token_id", finish.eos_token_id()}};
  json["seed"] = finish.seed();
  const int64_t after_first = out.usage.completion_tokens() - 1;
  const double decode_seconds = out.total_seconds - out.first_token_seconds;
  json["timings"] = {
      {"time_to_first_token_seconds", out.first_token_seconds},
      {"total_seconds", out.total_seconds},
      {"tokens_per_second", after_first > 0 && decode_seconds > 0
                                ? static_cast<double>(after_first) / decode_seconds
                                : 0.0},
      {"router_queue_seconds", finish.timings().queue_seconds()},
      {"router_time_to_first_token_seconds", finish.timings().time_to_first_token_seconds()},
      {"router_total_seconds", finish.timings().total_seconds()},
      {"kv_handover_bytes", finish.timings().kv_handover_bytes()}};
  return json;
}

bool PrintText(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

int RunGenerate(const GenerateFlags& flags) {
  grpc::ClientContext context;
  std::atomic<bool> interrupted{false};
  rpc::SignalWatcher signals([&](int) {
    interrupted = true;
    context.TryCancel();
  });
  std::string prompt = flags.prompt;
  if (prompt == "-") {
    prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  auto stub = Connect(flags.client);
  PrepareContext(flags.client, context);
  const TimePoint start = Clock::Real()->Now();
  Collected collected;
  v1::StreamGenerateResponse response;
  auto reader = stub->StreamGenerate(&context, MakeRequest(flags, prompt));
  bool output_broken = false;
  while (reader->Read(&response)) {
    if (collected.first_token_seconds == 0 && response.delta().token_ids_size() > 0) {
      collected.first_token_seconds = ToSeconds(Clock::Real()->Now() - start);
    }
    Collect(response, collected);
    if (!flags.json && !output_broken && !PrintText(response.delta().text())) {
      output_broken = true;  // Nobody reads any more: stop the work.
      context.TryCancel();
    }
  }
  const grpc::Status status = reader->Finish();
  collected.total_seconds = ToSeconds(Clock::Real()->Now() - start);
  if (interrupted) {
    std::fprintf(stderr, "baton: generate: interrupted\n");
    return kExitInterrupted;
  }
  if (output_broken) {
    std::fprintf(stderr, "baton: generate: cannot write to stdout\n");
    return kExitFailure;
  }
  if (!status.ok()) return ReportStatus("generate", rpc::FromGrpcStatus(status));
  if (!collected.finish) {
    return ReportStatus("generate",
                        absl::InternalError("the stream ended without a finish message"));
  }
  if (flags.json) {
    const std::string line = ToJson(collected, flags.logprobs.has_value())
                                 .dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
    if (!PrintText(line + "\n")) return kExitFailure;
  } else if (!PrintText("\n")) {
    return kExitFailure;
  }
  return kExitOk;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Generate from a prompt and stream the text");
  AddClientFlags(*command, flags->client);
  command->add_option("--model", flags->model, "Model name; may be left out when one is served");
  auto* prompt = command->add_option("--prompt", flags->prompt, "Prompt text, or - for stdin");
  auto* ids = command->add_option("--token-ids", flags->token_ids, "Prompt as token ids: 1,2,3")
                  ->delimiter(',');
  prompt->excludes(ids);
  command->add_flag("--parse-special", flags->parse_special,
                    "Control tokens spelled in the prompt become those tokens");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens to generate at most");
  command->add_option("--temperature", flags->temperature, "0 is greedy");
  command->add_option("--top-k", flags->top_k, "Keep the k likeliest tokens; 0: off");
  command->add_option("--top-p", flags->top_p, "Keep the likeliest tokens up to this probability");
  command->add_option("--min-p", flags->min_p, "Drop tokens below min-p times the likeliest");
  command->add_option("--seed", flags->seed, "Same seed, same tokens");
  command->add_option("--stop", flags->stop, "Stop string; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--stop-token-ids", flags->stop_token_ids, "Stop token ids: 1,2,3")
      ->delimiter(',');
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on after the model's end tokens");
  command->add_option("--logprobs", flags->logprobs,
                      "Log-probabilities with N alternatives (--json)");
  command->add_flag("--json", flags->json, "Print one JSON object instead of the text");
  command->callback([flags, exit_code, prompt, ids] {
    if (prompt->count() == 0 && ids->count() == 0) {
      throw CLI::RequiredError("--prompt or --token-ids");  // NOLINT(banned-throw): CLI11's own way
    }
    *exit_code = RunGenerate(*flags);
  });
}

}  // namespace baton::cli
