#include "router/registry/model_definition.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"

namespace baton::router {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kRevisionBytesMax = 256;
constexpr size_t kLayoutBytesMax = 4096;
constexpr int kEosTokenIdsMax = 64;
constexpr int kArtifactsMax = 8;
constexpr size_t kDigestBytes = 32;
// Token ids are 32 bits wide on the session.
constexpr int64_t kTokensMax = INT32_MAX;

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("model description: ", field, ": ", what));
}

absl::Status ParseArtifacts(const worker::v1::ModelDescription& in, size_t bytes_max,
                            ModelDefinition* out) {
  if (in.artifacts_size() < 1 || in.artifacts_size() > kArtifactsMax) {
    return Bad("artifacts", absl::StrCat("1 to ", kArtifactsMax, ", are ", in.artifacts_size()));
  }
  uint64_t total = 0;
  for (const auto& artifact : in.artifacts()) {
    if (artifact.digest().size() != kDigestBytes) {
      return Bad("artifacts.digest", absl::StrCat("32 bytes, are ", artifact.digest().size()));
    }
    if (artifact.size_bytes() < 1 || static_cast<uint64_t>(artifact.size_bytes()) > bytes_max) {
      return Bad("artifacts.size_bytes",
                 absl::StrCat("in [1, ", bytes_max, "], is ", artifact.size_bytes()));
    }
    total += static_cast<uint64_t>(artifact.size_bytes());
    // A kind that a later version adds is not needed for what this one does.
    if (artifact.kind() != worker::v1::ARTIFACT_KIND_TOKENIZER_JSON &&
        artifact.kind() != worker::v1::ARTIFACT_KIND_TOKENIZER_MODEL &&
        artifact.kind() != worker::v1::ARTIFACT_KIND_TOKENIZER_CONFIG) {
      continue;
    }
    out->artifacts.push_back({artifact.kind(), artifact.digest(), artifact.size_bytes()});
  }
  if (out->artifacts.empty()) return Bad("artifacts", "none is a tokenizer file");
  if (total > bytes_max) {
    return Bad("artifacts", absl::StrCat("at most ", bytes_max, " bytes in all, are ", total));
  }
  std::sort(out->artifacts.begin(), out->artifacts.end());
  for (size_t i = 1; i < out->artifacts.size(); ++i) {
    if (out->artifacts[i].kind == out->artifacts[i - 1].kind) {
      return Bad("artifacts", "two of one kind");
    }
  }
  return absl::OkStatus();
}

// Drops a default that validation would refuse in a request.
template <typename T>
void KeepIfValid(bool is_set, T value, bool valid, absl::string_view field,
                 const std::string& model, std::optional<T>* out) {
  if (!is_set) return;
  if (valid) {
    *out = value;
  } else {
    LogWarning("model's sampling default is out of range, not used",
               {{"model", model}, {"field", field}, {"value", value}});
  }
}

ModelSamplingDefaults ParseDefaults(const worker::v1::SamplingDefaults& in,
                                    const std::string& model) {
  ModelSamplingDefaults out;
  constexpr double kTemperatureMax = 1e6;
  KeepIfValid(in.has_temperature(), in.temperature(),
              in.temperature() >= 0 && in.temperature() <= kTemperatureMax, "temperature", model,
              &out.temperature);
  KeepIfValid(in.has_top_k(), in.top_k(), in.top_k() >= -1, "top_k", model, &out.top_k);
  KeepIfValid(in.has_top_p(), in.top_p(), in.top_p() >= 0 && in.top_p() <= 1, "top_p", model,
              &out.top_p);
  KeepIfValid(in.has_min_p(), in.min_p(), in.min_p() >= 0 && in.min_p() <= 1, "min_p", model,
              &out.min_p);
  return out;
}

absl::Status Disagree(absl::string_view field, const absl::AlphaNum& known,
                      const absl::AlphaNum& offered) {
  return absl::FailedPreconditionError(absl::StrCat(
      field, ": other workers have ", rpc::QuoteForError(known.Piece(), kLayoutBytesMax),
      ", this one ", rpc::QuoteForError(offered.Piece(), kLayoutBytesMax)));
}

}  // namespace

absl::StatusOr<ModelDefinition> ParseModelDefinition(const worker::v1::ModelDescription& in,
                                                     size_t artifact_bytes_max) {
  ModelDefinition out;
  if (in.name().empty() || in.name().size() > kNameBytesMax) {
    return Bad("name", absl::StrCat("1 to ", kNameBytesMax, " bytes, are ", in.name().size()));
  }
  if (in.revision().size() > kRevisionBytesMax) return Bad("revision", "too long");
  if (in.kv_layout().size() > kLayoutBytesMax) return Bad("kv_layout", "too long");
  if (in.context_tokens_max() < 2 || in.context_tokens_max() > kTokensMax) {
    return Bad("context_tokens_max", absl::StrCat("is ", in.context_tokens_max()));
  }
  if (in.vocabulary_size() < 1 || in.vocabulary_size() > kTokensMax) {
    return Bad("vocabulary_size", absl::StrCat("is ", in.vocabulary_size()));
  }
  if (in.sampled_vocabulary_size() < 0 || in.sampled_vocabulary_size() > in.vocabulary_size()) {
    return Bad("sampled_vocabulary_size", absl::StrCat("is ", in.sampled_vocabulary_size()));
  }
  if (in.eos_token_ids_size() > kEosTokenIdsMax) return Bad("eos_token_ids", "too many");
  for (int32_t id : in.eos_token_ids()) {
    if (id < 0 || id >= in.vocabulary_size()) return Bad("eos_token_ids", absl::StrCat("has ", id));
    out.eos_token_ids.push_back(id);
  }
  std::sort(out.eos_token_ids.begin(), out.eos_token_ids.end());
  out.name = in.name();
  out.revision = in.revision();
  out.context_tokens_max = in.context_tokens_max();
  out.vocabulary_size = in.vocabulary_size();
  out.sampled_vocabulary_size = in.sampled_vocabulary_size();
  out.kv_layout = in.kv_layout();
  out.defaults = ParseDefaults(in.sampling_defaults(), in.name());
  RETURN_IF_ERROR(ParseArtifacts(in, artifact_bytes_max, &out));
  return out;
}

absl::Status CheckAgreement(const ModelDefinition& known, const ModelDefinition& offered) {
  if (known.revision != offered.revision) {
    return Disagree("revision", known.revision, offered.revision);
  }
  if (known.artifacts != offered.artifacts) {
    return Disagree("tokenizer", absl::BytesToHexString(TokenizerKey(known.artifacts)),
                    absl::BytesToHexString(TokenizerKey(offered.artifacts)));
  }
  if (known.kv_layout != offered.kv_layout) {
    return Disagree("kv_layout", known.kv_layout, offered.kv_layout);
  }
  if (known.eos_token_ids != offered.eos_token_ids) {
    return Disagree("eos_token_ids", absl::StrJoin(known.eos_token_ids, ","),
                    absl::StrJoin(offered.eos_token_ids, ","));
  }
  if (known.context_tokens_max != offered.context_tokens_max) {
    return Disagree("context_tokens_max", known.context_tokens_max, offered.context_tokens_max);
  }
  if (known.vocabulary_size != offered.vocabulary_size) {
    return Disagree("vocabulary_size", known.vocabulary_size, offered.vocabulary_size);
  }
  if (known.sampled_vocabulary_size != offered.sampled_vocabulary_size) {
    return Disagree("sampled_vocabulary_size", known.sampled_vocabulary_size,
                    offered.sampled_vocabulary_size);
  }
  return absl::OkStatus();
}

std::string TokenizerKey(const std::vector<ArtifactRef>& artifacts) {
  std::string key;
  for (const ArtifactRef& artifact : artifacts) {
    key.push_back(static_cast<char>(artifact.kind));
    key += artifact.digest;
  }
  return key;
}

}  // namespace baton::router
