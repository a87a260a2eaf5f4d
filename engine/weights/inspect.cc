#include "engine/weights/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/weights/checked_math.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/llama_tensors.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

// Insertion order is kept: readers see the summary before the long list of tensors.
using Json = nlohmann::ordered_json;

constexpr DType kKvDTypes[] = {DType::kBF16, DType::kF32};

std::string BytesText(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.1f %s (%d bytes)", value, kUnits[unit], bytes);
}

std::string RopeText(const ModelConfig& config) {
  std::string text = absl::StrCat("theta ", config.rope_theta);
  const RopeScaling& rope = config.rope;
  switch (rope.type) {
    case RopeScaling::Type::kNone:
      return text;
    case RopeScaling::Type::kLinear:
      return absl::StrCat(text, ", linear scaling by ", rope.factor);
    case RopeScaling::Type::kLlama3:
      return absl::StrCat(text, ", llama3 scaling by ", rope.factor, " from ",
                          rope.original_max_position_embeddings);
    case RopeScaling::Type::kYarn:
      return absl::StrCat(text, ", yarn scaling by ", rope.factor, " from ",
                          rope.original_max_position_embeddings);
  }
  return text;
}

const char* RopeTypeName(RopeScaling::Type type) {
  switch (type) {
    case RopeScaling::Type::kNone:
      return "default";
    case RopeScaling::Type::kLinear:
      return "linear";
    case RopeScaling::Type::kLlama3:
      return "llama3";
    case RopeScaling::Type::kYarn:
      return "yarn";
  }
  return "?";
}

// dtype name -> {tensors, bytes}
std::map<std::string, std::pair<int64_t, uint64_t>> BytesByDType(
    const std::vector<InspectedTensor>& tensors) {
  std::map<std::string, std::pair<int64_t, uint64_t>> by_dtype;
  for (const InspectedTensor& tensor : tensors) {
    auto& [count, bytes] = by_dtype[std::string(DTypeName(tensor.dtype))];
    ++count;
    bytes += tensor.bytes;
  }
  return by_dtype;
}

void AppendConfigText(const ModelConfig& config, std::string* out) {
  const auto line = [&](const char* label, const auto&... values) {
    absl::StrAppendFormat(out, "%-14s", label);
    absl::StrAppend(out, values..., "\n");
  };
  line("architecture", config.architecture);
  line("layers", config.num_layers);
  line("hidden", config.hidden_size, ", feed-forward ", config.intermediate_size);
  line("attention", config.num_heads, " heads over ", config.num_kv_heads, " KV heads of ",
       config.head_dim);
  line("vocabulary", config.vocab_size, config.tie_word_embeddings ? ", tied head" : "");
  line("context", config.max_position_embeddings);
  line("rope", RopeText(config));
  line("biases", config.attention_bias ? "attention " : "", config.mlp_bias ? "mlp" : "",
       config.attention_bias || config.mlp_bias ? "" : "none");
  line("eos ids", config.eos_ids.empty() ? "none" : absl::StrJoin(config.eos_ids, " "));
  for (const DType dtype : kKvDTypes) {
    line("KV per token", BytesText(KvBytesPerToken(config, dtype)), " as ", DTypeName(dtype));
  }
}

Json ConfigJson(const ModelConfig& config) {
  Json json = {{"hidden_size", config.hidden_size},
               {"num_hidden_layers", config.num_layers},
               {"num_attention_heads", config.num_heads},
               {"num_key_value_heads", config.num_kv_heads},
               {"head_dim", config.head_dim},
               {"intermediate_size", config.intermediate_size},
               {"vocab_size", config.vocab_size},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", config.rms_norm_eps},
               {"rope_theta", config.rope_theta},
               {"rope_type", RopeTypeName(config.rope.type)},
               {"tie_word_embeddings", config.tie_word_embeddings},
               {"attention_bias", config.attention_bias},
               {"mlp_bias", config.mlp_bias},
               {"eos_token_id", config.eos_ids}};
  if (config.rope.type != RopeScaling::Type::kNone) json["rope_factor"] = config.rope.factor;
  if (config.bos_id.has_value()) json["bos_token_id"] = *config.bos_id;
  return json;
}

}  // namespace

std::string InspectReport::ToText() const {
  std::string out;
  const auto line = [&](const char* label, const auto&... values) {
    absl::StrAppendFormat(&out, "%-14s", label);
    absl::StrAppend(&out, values..., "\n");
  };
  line("path", absl::Utf8SafeCHexEscape(path));
  if (config.has_value()) AppendConfigText(*config, &out);
  line("parameters", parameter_count);
  line("weights", BytesText(weight_bytes), " in ", tensors.size(), " tensors, ", num_files,
       num_files == 1 ? " file" : " files");
  for (const auto& [name, totals] : BytesByDType(tensors)) {
    line("  of type", name, ": ", totals.first, " tensors, ", BytesText(totals.second));
  }
  line("revision", revision);
  if (config.has_value()) {
    line("complete", tensors_valid.ok() ? "yes" : absl::StrCat("no: ", tensors_valid.message()));
  }
  // Names come from the file: control characters must not reach a terminal.
  constexpr size_t kWidthMax = 72;
  std::vector<std::string> names;
  size_t width = 0;
  for (const InspectedTensor& tensor : tensors) {
    names.push_back(absl::Utf8SafeCHexEscape(tensor.name));
    width = std::max(width, std::min(names.back().size(), kWidthMax));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    absl::StrAppendFormat(&out, "%-*s  %-7s [%s]\n", static_cast<int>(width), names[i],
                          DTypeName(tensors[i].dtype), absl::StrJoin(tensors[i].shape, ", "));
  }
  return out;
}

std::string InspectReport::ToJson() const {
  Json json = {{"path", path}};
  if (config.has_value()) {
    json["architecture"] = config->architecture;
    json["config"] = ConfigJson(*config);
    for (const DType dtype : kKvDTypes) {
      json["kv_bytes_per_token"][std::string(DTypeName(dtype))] = KvBytesPerToken(*config, dtype);
    }
    json["complete"] = tensors_valid.ok();
    if (!tensors_valid.ok()) json["problem"] = std::string(tensors_valid.message());
  }
  json["revision"] = revision;
  json["num_files"] = num_files;
  json["file_bytes"] = file_bytes;
  json["parameter_count"] = parameter_count;
  json["weight_bytes"] = weight_bytes;
  json["tensors"] = Json::array();
  for (const InspectedTensor& tensor : tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", std::string(DTypeName(tensor.dtype))},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes}});
  }
  // A path may hold any bytes: replace what is not UTF-8 instead of raising an exception.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<InspectReport> InspectModel(const std::string& path) {
  InspectReport report;
  report.path = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(report.config, ReadModelConfig(path));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  if (report.config.has_value()) {
    report.tensors_valid = ValidateTensors(*report.config, *checkpoint);
  }
  report.revision = checkpoint->revision();
  report.num_files = static_cast<int32_t>(checkpoint->files().size());
  for (const auto& file : checkpoint->files()) report.file_bytes += file->file_bytes();
  report.weight_bytes = checkpoint->total_bytes();
  for (const TensorInfo* tensor : checkpoint->tensors()) {
    report.parameter_count += CheckedElements(tensor->shape).value_or(0);
    report.tensors.push_back({tensor->name, tensor->dtype, tensor->shape, tensor->data.size()});
  }
  std::sort(report.tensors.begin(), report.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return report;
}

}  // namespace baton
