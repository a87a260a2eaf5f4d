#include "router/validation/validation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace baton::router {
namespace {

using rpc::InvalidFieldError;

absl::Status CheckNoUnknownFields(absl::string_view path,
                                  const google::protobuf::Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return InvalidFieldError(
      path.empty() ? "request" : path,
      absl::StrCat("field number ", unknown.field(0).number(), " is not known to this server"));
}

absl::Status CheckProbability(absl::string_view field, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();  // False for NaN.
  return InvalidFieldError(field, absl::StrCat("must be in [0, 1], is ", value));
}

absl::Status CheckNeutral(absl::string_view field, bool is_set, double value, double neutral) {
  if (!is_set || value == neutral) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat("is not supported, except for the neutral value ",
                                               neutral, "; is ", value));
}

absl::Status CheckTokenId(absl::string_view field, int index, int64_t id, int64_t vocabulary) {
  if (id >= 0 && id < vocabulary) return absl::OkStatus();
  return InvalidFieldError(field, absl::StrCat("token id ", id, " at index ", index,
                                               " is not in [0, ", vocabulary, ")"));
}

absl::Status CheckUnsupported(const v1::SamplingParameters& in) {
  RETURN_IF_ERROR(CheckNeutral("sampling.repetition_penalty", in.has_repetition_penalty(),
                               in.repetition_penalty(), 1));
  RETURN_IF_ERROR(CheckNeutral("sampling.presence_penalty", in.has_presence_penalty(),
                               in.presence_penalty(), 0));
  RETURN_IF_ERROR(CheckNeutral("sampling.frequency_penalty", in.has_frequency_penalty(),
                               in.frequency_penalty(), 0));
  if (in.has_n() && in.n() != 1) {
    return InvalidFieldError("sampling.n", absl::StrCat("only 1 is supported, is ", in.n()));
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingChoice> ValidateSampling(const v1::SamplingParameters& in,
                                                const ServedModel& model) {
  RETURN_IF_ERROR(CheckNoUnknownFields("sampling", in));
  RETURN_IF_ERROR(CheckUnsupported(in));
  const ModelSamplingDefaults& defaults = model.defaults;
  SamplingChoice out;
  out.temperature = in.has_temperature() ? in.temperature() : defaults.temperature.value_or(1);
  if (!(out.temperature >= 0 && out.temperature <= kTemperatureMax)) {
    return InvalidFieldError(
        "sampling.temperature",
        absl::StrCat("must be in [0, ", kTemperatureMax, "], is ", out.temperature));
  }
  const int64_t top_k = in.has_top_k() ? in.top_k() : defaults.top_k.value_or(0);
  if (top_k < -1) {
    return InvalidFieldError("sampling.top_k", absl::StrCat("must be -1 or more, is ", top_k));
  }
  out.top_k = top_k <= 0 || top_k >= model.vocabulary_size ? 0 : static_cast<int32_t>(top_k);
  out.top_p = in.has_top_p() ? in.top_p() : defaults.top_p.value_or(1);
  RETURN_IF_ERROR(CheckProbability("sampling.top_p", out.top_p));
  out.min_p = in.has_min_p() ? in.min_p() : defaults.min_p.value_or(0);
  RETURN_IF_ERROR(CheckProbability("sampling.min_p", out.min_p));
  if (out.temperature < kGreedyTemperature || top_k == 1 || out.top_p == 0 || out.min_p == 1) {
    out.temperature = 0;
    out.top_k = 0;
    out.top_p = 1;
    out.min_p = 0;
  }
  if (in.has_seed()) out.seed = in.seed();
  return out;
}

absl::Status ValidateLogprobs(const v1::LogprobOptions& in, SamplingChoice* out) {
  RETURN_IF_ERROR(CheckNoUnknownFields("logprobs", in));
  if (in.top() < 0 || in.top() > kTopLogprobsMax) {
    return InvalidFieldError("logprobs.top",
                             absl::StrCat("must be in [0, ", kTopLogprobsMax, "], is ", in.top()));
  }
  out->top_logprobs = static_cast<uint32_t>(in.top());
  out->logprobs = in.enabled() || in.top() > 0;
  return absl::OkStatus();
}

absl::StatusOr<StopConditions> ValidateStop(const v1::StopConditions& in,
                                            const ServedModel& model) {
  RETURN_IF_ERROR(CheckNoUnknownFields("stop", in));
  if (in.min_tokens() != 0) {
    return InvalidFieldError("stop.min_tokens", "is not supported");
  }
  if (in.has_max_tokens() && in.max_tokens() < 1) {
    return InvalidFieldError("stop.max_tokens",
                             absl::StrCat("must be 1 or more, is ", in.max_tokens()));
  }
  if (in.stop_strings_size() > kStopStringsMax) {
    return InvalidFieldError("stop.stop_strings", absl::StrCat("at most ", kStopStringsMax,
                                                               ", are ", in.stop_strings_size()));
  }
  if (in.stop_token_ids_size() > kStopTokenIdsMax) {
    return InvalidFieldError(
        "stop.stop_token_ids",
        absl::StrCat("at most ", kStopTokenIdsMax, ", are ", in.stop_token_ids_size()));
  }
  StopConditions out;
  for (int i = 0; i < in.stop_strings_size(); ++i) {
    const size_t size = in.stop_strings(i).size();
    if (size < 1 || size > kStopStringBytesMax) {
      return InvalidFieldError("stop.stop_strings",
                               absl::StrCat("must be of 1 to ", kStopStringBytesMax,
                                            " bytes each; index ", i, " has ", size));
    }
    out.strings.push_back(in.stop_strings(i));
  }
  for (int i = 0; i < in.stop_token_ids_size(); ++i) {
    RETURN_IF_ERROR(
        CheckTokenId("stop.stop_token_ids", i, in.stop_token_ids(i), model.vocabulary_size));
    out.token_ids.push_back(static_cast<int32_t>(in.stop_token_ids(i)));
  }
  out.include_string = in.include_stop_string();
  if (!in.ignore_eos()) out.eos_token_ids = model.eos_token_ids;
  return out;
}

absl::Status PromptTooLong(absl::string_view field, int64_t tokens, int64_t context) {
  return InvalidFieldError(
      field, absl::StrCat("prompt of ", tokens, " tokens does not leave room in the context of ",
                          context, " tokens"));
}

absl::Status ValidateText(const v1::GenerateRequest& request, ValidatedRequest* out) {
  const ServedModel& model = *out->model;
  // A token stands for so many bytes at most; what is longer cannot fit, whatever it is, and is not
  // worth tokenising.
  const size_t longest = model.codec->longest_token_bytes();
  const size_t bytes_max = static_cast<size_t>(model.context_tokens_max) * longest;
  if (request.text().size() > bytes_max) {
    return InvalidFieldError(
        "text",
        absl::StrCat("prompt of ", request.text().size(), " bytes cannot fit the context of ",
                     model.context_tokens_max, " tokens (at most ", bytes_max, " bytes)"));
  }
  out->has_text = true;
  out->text = request.text();
  out->encode.parse_special = request.parse_special();
  if (request.has_add_special_tokens()) {
    out->encode.add_special_tokens = request.add_special_tokens();
  }
  return absl::OkStatus();
}

absl::Status ValidateTokenIds(const v1::GenerateRequest& request, ValidatedRequest* out) {
  const ServedModel& model = *out->model;
  const auto& ids = request.token_ids().ids();
  RETURN_IF_ERROR(CheckNoUnknownFields("token_ids", request.token_ids()));
  if (request.has_parse_special()) {
    return InvalidFieldError("parse_special", "is only for text");
  }
  if (request.has_add_special_tokens()) {
    return InvalidFieldError("add_special_tokens", "is only for text");
  }
  if (ids.empty()) return InvalidFieldError("token_ids", "is empty");
  if (ids.size() >= model.context_tokens_max) {
    return PromptTooLong("token_ids", ids.size(), model.context_tokens_max);
  }
  out->prompt.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(CheckTokenId("token_ids", i, ids[i], model.vocabulary_size));
    out->prompt.push_back(static_cast<int32_t>(ids[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ValidatedRequest> ValidateGenerate(const v1::GenerateRequest& request,
                                                  std::shared_ptr<const ServedModel> model) {
  RETURN_IF_ERROR(CheckNoUnknownFields("", request));
  ValidatedRequest out;
  out.model = std::move(model);
  if (request.client_request_id().size() > kClientRequestIdBytesMax) {
    return InvalidFieldError("client_request_id",
                             absl::StrCat("at most ", kClientRequestIdBytesMax, " bytes, are ",
                                          request.client_request_id().size()));
  }
  out.client_request_id = request.client_request_id();
  ASSIGN_OR_RETURN(out.sampling, ValidateSampling(request.sampling(), *out.model));
  RETURN_IF_ERROR(ValidateLogprobs(request.logprobs(), &out.sampling));
  ASSIGN_OR_RETURN(out.stop, ValidateStop(request.stop(), *out.model));
  if (request.stop().has_max_tokens()) out.max_tokens = request.stop().max_tokens();
  switch (request.input_case()) {
    case v1::GenerateRequest::kText:
      RETURN_IF_ERROR(ValidateText(request, &out));
      break;
    case v1::GenerateRequest::kTokenIds:
      RETURN_IF_ERROR(ValidateTokenIds(request, &out));
      break;
    case v1::GenerateRequest::INPUT_NOT_SET:
      return InvalidFieldError("input", "exactly one of text and token_ids must be set");
  }
  return out;
}

absl::Status ResolveLengths(ValidatedRequest* request) {
  const ServedModel& model = *request->model;
  const absl::string_view field = request->has_text ? "text" : "token_ids";
  const auto tokens = static_cast<int64_t>(request->prompt.size());
  if (tokens == 0) return InvalidFieldError(field, "the prompt has no tokens");
  if (tokens >= model.context_tokens_max) {
    return PromptTooLong(field, tokens, model.context_tokens_max);
  }
  // The prompt and one more position: less could never run, on any worker.
  if (model.kv_tokens_max > 0 && tokens >= model.kv_tokens_max) {
    return InvalidFieldError(
        field, absl::StrCat("prompt of ", tokens, " tokens can never fit a KV pool of ",
                            model.kv_tokens_max, " tokens"));
  }
  const int64_t room = model.context_tokens_max - tokens;
  if (request->max_tokens.has_value() && *request->max_tokens > room) {
    return InvalidFieldError(
        "stop.max_tokens",
        absl::StrCat("is ", *request->max_tokens, ", but a prompt of ", tokens, " tokens leaves ",
                     room, " of the context of ", model.context_tokens_max, " tokens"));
  }
  request->stop.max_tokens = request->max_tokens.value_or(room);
  return absl::OkStatus();
}

absl::Status ValidateTokenize(const v1::TokenizeRequest& request, size_t bytes_max) {
  RETURN_IF_ERROR(CheckNoUnknownFields("", request));
  if (request.text().size() <= bytes_max) return absl::OkStatus();
  return InvalidFieldError(
      "text", absl::StrCat("at most ", bytes_max, " bytes, are ", request.text().size()));
}

absl::StatusOr<std::vector<int32_t>> ValidateDetokenize(const v1::DetokenizeRequest& request,
                                                        const ServedModel& model, size_t ids_max) {
  RETURN_IF_ERROR(CheckNoUnknownFields("", request));
  RETURN_IF_ERROR(CheckNoUnknownFields("token_ids", request.token_ids()));
  const auto& ids = request.token_ids().ids();
  if (static_cast<size_t>(ids.size()) > ids_max) {
    return InvalidFieldError("token_ids", absl::StrCat("at most ", ids_max, ", are ", ids.size()));
  }
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(CheckTokenId("token_ids", i, ids[i], model.vocabulary_size));
    out.push_back(static_cast<int32_t>(ids[i]));
  }
  return out;
}

}  // namespace baton::router
