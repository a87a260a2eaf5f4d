#include "engine/weights/rope_config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/weights/strict_json.h"

namespace baton {
namespace {

constexpr double kThetaMax = 1e12;
constexpr double kFactorMax = 1e6;
constexpr double kTiny = 1e-9;

constexpr absl::string_view kKnownKeys[] = {
    "type", "rope_type", "rope_theta", "factor", "truncate", "low_freq_factor", "high_freq_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
    "mscale_all_dim", "partial_rotary_factor",
    // Written by early yarn fine-tunes; says how the weights were made, not what to compute.
    "finetuned"};

absl::StatusOr<RopeScaling::Type> ParseType(const JsonFields& rope) {
  const char* key = rope.Find("rope_type") != nullptr ? "rope_type" : "type";
  ASSIGN_OR_RETURN(const std::optional<std::string> type, rope.String(key));
  if (!type.has_value() || *type == "default") return RopeScaling::Type::kNone;
  if (*type == "linear") return RopeScaling::Type::kLinear;
  if (*type == "llama3") return RopeScaling::Type::kLlama3;
  if (*type == "yarn") return RopeScaling::Type::kYarn;
  return rope.Unsupported(key, absl::StrCat(QuoteForError(*type), " is not supported"));
}

absl::Status CheckPartialRotary(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<double> partial,
                   fields.Number("partial_rotary_factor", 0, 1));
  if (partial.value_or(1.0) == 1.0) return absl::OkStatus();
  return fields.Unsupported("partial_rotary_factor", "other than 1 is not supported");
}

absl::Status ParseLlama3(const JsonFields& rope, RopeScaling* scaling) {
  for (const auto& [key, target] : {std::pair{"low_freq_factor", &scaling->low_freq_factor},
                                    std::pair{"high_freq_factor", &scaling->high_freq_factor}}) {
    ASSIGN_OR_RETURN(const auto value, rope.Number(key, kTiny, kFactorMax));
    if (!value.has_value()) return rope.Unsupported(key, "is missing");
    *target = *value;
  }
  if (scaling->low_freq_factor >= scaling->high_freq_factor) {
    return rope.Invalid("low_freq_factor", "is not below high_freq_factor");
  }
  return absl::OkStatus();
}

absl::Status ParseYarn(const JsonFields& rope, RopeScaling* scaling) {
  ASSIGN_OR_RETURN(const auto fast, rope.Number("beta_fast", 0, kFactorMax));
  ASSIGN_OR_RETURN(const auto slow, rope.Number("beta_slow", 0, kFactorMax));
  // transformers writes `get("beta_fast") or 32`: 0 means the default too.
  if (const double value = fast.value_or(0); value > 0) scaling->beta_fast = value;
  if (const double value = slow.value_or(0); value > 0) scaling->beta_slow = value;
  if (scaling->beta_fast < scaling->beta_slow) {
    return rope.Invalid("beta_fast", "is below beta_slow");
  }
  ASSIGN_OR_RETURN(scaling->attention_factor, rope.Number("attention_factor", kTiny, kFactorMax));
  ASSIGN_OR_RETURN(scaling->mscale, rope.Number("mscale", 0, kFactorMax));
  ASSIGN_OR_RETURN(scaling->mscale_all_dim, rope.Number("mscale_all_dim", 0, kFactorMax));
  ASSIGN_OR_RETURN(const auto truncate, rope.Bool("truncate"));
  scaling->truncate = truncate.value_or(true);
  return absl::OkStatus();
}

// The factor of yarn may be null: then it is the ratio of the context lengths.
absl::Status ParseFactor(const JsonFields& rope, const ModelConfig& config, RopeScaling* scaling) {
  ASSIGN_OR_RETURN(const auto factor, rope.Number("factor", kTiny, kFactorMax));
  if (factor.has_value()) {
    scaling->factor = *factor;
  } else if (scaling->type == RopeScaling::Type::kYarn && rope.object().contains("factor")) {
    scaling->factor = static_cast<double>(config.max_position_embeddings) /
                      scaling->original_max_position_embeddings;
  } else {
    return rope.Unsupported("factor", "is missing");
  }
  return absl::OkStatus();
}

absl::Status ParseScaling(const JsonFields& top, const JsonFields& rope, ModelConfig* config) {
  for (const auto& [key, value] : rope.object().items()) {
    if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) == std::end(kKnownKeys)) {
      return rope.Unsupported(QuoteForError(key), "is not supported");
    }
  }
  RETURN_IF_ERROR(CheckPartialRotary(rope));
  RopeScaling& scaling = config->rope;
  ASSIGN_OR_RETURN(scaling.type, ParseType(rope));
  if (scaling.type == RopeScaling::Type::kNone) return absl::OkStatus();

  constexpr char kOriginal[] = "original_max_position_embeddings";
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  ASSIGN_OR_RETURN(const auto outer, top.Int(kOriginal, 1, kMax));
  ASSIGN_OR_RETURN(const auto inner, rope.Int(kOriginal, 1, kMax));
  scaling.original_max_position_embeddings =
      outer.value_or(inner.value_or(config->max_position_embeddings));
  RETURN_IF_ERROR(ParseFactor(rope, *config, &scaling));
  if (scaling.type == RopeScaling::Type::kLlama3) return ParseLlama3(rope, &scaling);
  if (scaling.type == RopeScaling::Type::kYarn) return ParseYarn(rope, &scaling);
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRope(const JsonFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(CheckPartialRotary(fields));
  ASSIGN_OR_RETURN(const auto outer_theta, fields.Number("rope_theta", 0, kThetaMax));
  if (outer_theta.has_value()) config->rope_theta = *outer_theta;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* object = fields.Find(key);
    if (object == nullptr) continue;
    if (!object->is_object()) return fields.Invalid(key, "is not an object");
    if (object->empty()) continue;
    const JsonFields rope(*object, absl::StrCat("config.json: ", key, "."));
    ASSIGN_OR_RETURN(const auto theta, rope.Number("rope_theta", 0, kThetaMax));
    if (theta.has_value()) config->rope_theta = *theta;
    RETURN_IF_ERROR(ParseScaling(fields, rope, config));
    break;
  }
  // At 1 every pair would turn alike, and yarn would divide by log(1).
  if (config->rope_theta <= 1.0) return fields.Invalid("rope_theta", "is not above 1");
  return absl::OkStatus();
}

}  // namespace baton
