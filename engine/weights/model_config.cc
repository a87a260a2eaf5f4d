#include "engine/weights/model_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "engine/weights/json_fields.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/rope_config.h"
#include "engine/weights/strict_json.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kConfigBytesMax = size_t{1} << 20;
constexpr int32_t kHiddenMax = 1 << 20;
constexpr int32_t kLayersMax = 1024;
constexpr int32_t kHeadsMax = 4096;
constexpr int32_t kVocabMax = 1 << 24;
constexpr int32_t kContextMax = 1 << 24;
constexpr size_t kEosIdsMax = 1024;

// Keys of related architectures that would change the result. Each is refused unless it has a value
// that does nothing. (An unknown key cannot be judged: configs are full of notes.)
struct RefusedKey {
  const char* key;
  absl::string_view harmless;  // as JSON
};
constexpr RefusedKey kRefusedKeys[] = {
    {"sliding_window", "null"},
    {"quantization_config", "null"},
    {"attn_logit_softcapping", "null"},
    {"final_logit_softcapping", "null"},
    {"query_pre_attn_scalar", "null"},
    {"attention_multiplier", "null"},
    {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"num_experts", "0"},
    {"num_local_experts", "0"},
    {"no_rope_layers", "null"},
    {"use_qk_norm", "false"},
    {"qk_norm", "false"},
    {"clip_qkv", "null"},
    {"alibi", "false"},
    {"use_parallel_residual", "false"},
};

absl::Status CheckRefusedKeys(const JsonFields& fields) {
  for (const auto& [key, harmless] : kRefusedKeys) {
    const Json* value = fields.Find(key);
    if (value == nullptr) continue;
    // 1 and 1.0 compare equal.
    if (*value == Json::parse(harmless.begin(), harmless.end(), nullptr, false)) continue;
    // Mistral-style configs switch the window off beside its size.
    const Json* use_window = fields.Find("use_sliding_window");
    if (key == absl::string_view("sliding_window") && use_window != nullptr &&
        *use_window == false) {
      continue;
    }
    return fields.Unsupported(key, "is not supported");
  }
  const Json* layer_types = fields.Find("layer_types");
  if (layer_types != nullptr) {
    for (const Json& type : *layer_types) {
      if (type != "full_attention") return fields.Unsupported("layer_types", "is not supported");
    }
  }
  return absl::OkStatus();
}

absl::Status ParseArchitecture(const JsonFields& fields, ModelConfig* config) {
  constexpr absl::string_view kLlama = "LlamaForCausalLM";
  ASSIGN_OR_RETURN(const auto model_type, fields.String("model_type"));
  const Json* architectures = fields.Find("architectures");
  if (architectures != nullptr) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        !architectures->front().is_string()) {
      return fields.Invalid("architectures", "is not a list of one name");
    }
    config->architecture = architectures->front().get<std::string>();
    if (config->architecture != kLlama) {
      return fields.Unsupported(
          "architectures", absl::StrCat(QuoteForError(config->architecture), " is not supported"));
    }
  } else if (!model_type.has_value()) {
    return fields.Unsupported("architectures", "is missing");
  }
  const std::string type = model_type.value_or("llama");
  if (type != "llama") {
    return fields.Unsupported("model_type", absl::StrCat(QuoteForError(type), " is not supported"));
  }
  config->architecture = std::string(kLlama);
  ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  // Two names of x * sigmoid(x).
  const std::string function = activation.value_or("silu");
  if (function != "silu" && function != "swish") {
    return fields.Unsupported("hidden_act",
                              absl::StrCat(QuoteForError(function), " is not supported"));
  }
  return absl::OkStatus();
}

absl::Status ParseHeads(const JsonFields& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->num_heads, fields.RequiredInt("num_attention_heads", 1, kHeadsMax));
  ASSIGN_OR_RETURN(const auto kv_heads, fields.Int("num_key_value_heads", 1, kHeadsMax));
  config->num_kv_heads = kv_heads.value_or(config->num_heads);
  if (config->num_heads % config->num_kv_heads != 0) {
    return fields.Invalid("num_key_value_heads",
                          absl::StrCat(config->num_kv_heads,
                                       " does not divide num_attention_heads ", config->num_heads));
  }
  ASSIGN_OR_RETURN(const auto head_dim, fields.Int("head_dim", 1, kHiddenMax));
  if (!head_dim.has_value() && config->hidden_size % config->num_heads != 0) {
    return fields.Invalid("num_attention_heads",
                          absl::StrCat(config->num_heads, " does not divide hidden_size ",
                                       config->hidden_size, ", and there is no head_dim"));
  }
  config->head_dim = head_dim.value_or(config->hidden_size / config->num_heads);
  if (config->head_dim % 2 != 0) {
    return fields.Invalid("head_dim", absl::StrCat(config->head_dim, " is odd"));
  }
  if (config->head_dim < kHeadDimMin || config->head_dim > kHeadDimMax) {
    return fields.Unsupported(
        "head_dim", absl::StrCat(config->head_dim, " is outside ", kHeadDimMin, "..", kHeadDimMax));
  }
  return absl::OkStatus();
}

absl::Status ParseSizes(const JsonFields& fields, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->hidden_size, fields.RequiredInt("hidden_size", 1, kHiddenMax));
  ASSIGN_OR_RETURN(config->num_layers, fields.RequiredInt("num_hidden_layers", 1, kLayersMax));
  ASSIGN_OR_RETURN(config->intermediate_size,
                   fields.RequiredInt("intermediate_size", 1, kHiddenMax));
  ASSIGN_OR_RETURN(config->vocab_size, fields.RequiredInt("vocab_size", 1, kVocabMax));
  ASSIGN_OR_RETURN(config->max_position_embeddings,
                   fields.RequiredInt("max_position_embeddings", 1, kContextMax));
  ASSIGN_OR_RETURN(const auto eps, fields.Number("rms_norm_eps", 0, 1));
  config->rms_norm_eps = static_cast<float>(eps.value_or(1e-6));
  ASSIGN_OR_RETURN(const auto tied, fields.Bool("tie_word_embeddings"));
  config->tie_word_embeddings = tied.value_or(false);
  ASSIGN_OR_RETURN(const auto attention_bias, fields.Bool("attention_bias"));
  config->attention_bias = attention_bias.value_or(false);
  ASSIGN_OR_RETURN(const auto mlp_bias, fields.Bool("mlp_bias"));
  config->mlp_bias = mlp_bias.value_or(false);
  ASSIGN_OR_RETURN(const auto interleaved, fields.Bool("rope_interleaved"));
  config->rope_interleaved = interleaved.value_or(false);
  return absl::OkStatus();
}

// eos_token_id: a number, a list or null. Leaves *ids alone when absent.
absl::Status ParseEos(const JsonFields& fields, int32_t vocab_size, std::vector<int32_t>* ids) {
  constexpr char kKey[] = "eos_token_id";
  const Json* value = fields.Find(kKey);
  if (value == nullptr) return absl::OkStatus();
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kEosIdsMax) {
    return fields.Invalid(kKey, absl::StrCat("lists more than ", kEosIdsMax, " ids"));
  }
  ids->clear();
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return fields.Invalid(kKey, absl::StrCat("is no token id of 0..", vocab_size - 1));
    }
    const auto token = id.get<int32_t>();
    if (std::find(ids->begin(), ids->end(), token) == ids->end()) ids->push_back(token);
  }
  return absl::OkStatus();
}

absl::Status ParseSpecialTokens(const JsonFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(ParseEos(fields, config->vocab_size, &config->eos_ids));
  ASSIGN_OR_RETURN(const auto bos, fields.Int("bos_token_id", 0, config->vocab_size - 1));
  if (bos.has_value()) config->bos_id = bos;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<float>> Float(const JsonFields& fields, const char* key, double min,
                                           double max) {
  ASSIGN_OR_RETURN(const auto value, fields.Number(key, min, max));
  if (!value.has_value()) return std::optional<float>();
  return std::optional<float>(static_cast<float>(*value));
}

absl::Status ParseSampling(const JsonFields& fields, SamplingDefaults* sampling) {
  constexpr double kTiny = 1e-30;
  ASSIGN_OR_RETURN(sampling->do_sample, fields.Bool("do_sample"));
  ASSIGN_OR_RETURN(sampling->temperature, Float(fields, "temperature", 0, 1e6));
  ASSIGN_OR_RETURN(sampling->top_k, fields.Int("top_k", 0, kVocabMax));
  ASSIGN_OR_RETURN(sampling->top_p, Float(fields, "top_p", kTiny, 1));
  ASSIGN_OR_RETURN(sampling->min_p, Float(fields, "min_p", 0, 1));
  ASSIGN_OR_RETURN(sampling->repetition_penalty, Float(fields, "repetition_penalty", kTiny, 1e6));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(
    absl::string_view config_json, std::optional<absl::string_view> generation_config_json) {
  ModelConfig config;
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_json, "config.json", JsonLimits()));
  const JsonFields fields(json, "config.json: ");
  RETURN_IF_ERROR(ParseArchitecture(fields, &config));
  RETURN_IF_ERROR(CheckRefusedKeys(fields));
  RETURN_IF_ERROR(ParseSizes(fields, &config));
  RETURN_IF_ERROR(ParseHeads(fields, &config));
  RETURN_IF_ERROR(ParseRope(fields, &config));
  RETURN_IF_ERROR(ParseSpecialTokens(fields, &config));
  if (!generation_config_json.has_value()) return config;

  ASSIGN_OR_RETURN(const Json generation, ParseJsonObject(*generation_config_json,
                                                          "generation_config.json", JsonLimits()));
  const JsonFields generation_fields(generation, "generation_config.json: ");
  RETURN_IF_ERROR(ParseSpecialTokens(generation_fields, &config));
  RETURN_IF_ERROR(ParseSampling(generation_fields, &config.sampling));
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/config.json");
  absl::StatusOr<std::string> text = ReadTextFile(path, kConfigBytesMax);
  if (!text.ok()) return absl::FailedPreconditionError(text.status().message());
  const absl::StatusOr<std::string> generation =
      ReadTextFile(absl::StrCat(directory, "/generation_config.json"), kConfigBytesMax);
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  std::optional<absl::string_view> generation_text;
  if (generation.ok()) generation_text = *generation;
  absl::StatusOr<ModelConfig> config = ParseModelConfig(*text, generation_text);
  if (!config.ok()) return Annotate(config.status(), directory);
  return config;
}

absl::StatusOr<int32_t> ResolveContextLimit(const ModelConfig& config,
                                            std::optional<int32_t> requested,
                                            bool allow_beyond_model) {
  if (!requested.has_value()) return config.max_position_embeddings;
  if (*requested < 1 || *requested > kContextMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("context limit ", *requested, " is outside 1..", kContextMax));
  }
  double stretched = config.max_position_embeddings;
  if (config.rope.type == RopeScaling::Type::kLinear) {
    stretched *= config.rope.factor;
  } else if (config.rope.type == RopeScaling::Type::kYarn) {
    stretched =
        std::max(stretched, config.rope.original_max_position_embeddings * config.rope.factor);
  }
  if (*requested > stretched && !allow_beyond_model) {
    return absl::FailedPreconditionError(absl::StrCat(
        "context limit ", *requested, " is beyond the model's max_position_embeddings ",
        config.max_position_embeddings));
  }
  return *requested;
}

int64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype) {
  // Below 2^10 * 2^12 * 2^8 * 2 * 8: no overflow within the limits above.
  return int64_t{2} * config.num_layers * config.num_kv_heads * config.head_dim *
         DTypeBytes(kv_dtype);
}

absl::Status CheckTokenizerSize(const ModelConfig& config, int64_t num_tokens) {
  if (num_tokens <= config.vocab_size) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the tokenizer has ", num_tokens,
                                                    " tokens, more than vocab_size ",
                                                    config.vocab_size, " of config.json"));
}

}  // namespace baton
