#include "engine/weights/llama_tensors.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/weights/strict_json.h"

namespace baton {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

// A tensor, and the settings of config.json that it follows from.
struct Requirement {
  ExpectedTensor tensor;
  const char* keys;
};

void AppendLinear(const std::string& name, int64_t rows, int64_t columns, bool bias,
                  const char* keys, const char* bias_key, std::vector<Requirement>* out) {
  out->push_back({{name + ".weight", {rows, columns}}, keys});
  if (bias) out->push_back({{name + ".bias", {rows}}, bias_key});
}

void AppendLayer(const ModelConfig& config, int32_t layer, std::vector<Requirement>* out) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  static constexpr char kNorm[] = "num_hidden_layers, hidden_size";
  static constexpr char kQ[] = "num_hidden_layers, num_attention_heads, head_dim, hidden_size";
  static constexpr char kKv[] = "num_hidden_layers, num_key_value_heads, head_dim, hidden_size";
  static constexpr char kMlp[] = "num_hidden_layers, intermediate_size, hidden_size";
  const auto attention = [&](const char* name, int64_t rows, int64_t columns, const char* keys) {
    AppendLinear(absl::StrCat(prefix, "self_attn.", name), rows, columns, config.attention_bias,
                 keys, "attention_bias", out);
  };
  const auto mlp = [&](const char* name, int64_t rows, int64_t columns) {
    AppendLinear(absl::StrCat(prefix, "mlp.", name), rows, columns, config.mlp_bias, kMlp,
                 "mlp_bias", out);
  };
  out->push_back({{prefix + "input_layernorm.weight", {hidden}}, kNorm});
  attention("q_proj", q_rows, hidden, kQ);
  attention("k_proj", kv_rows, hidden, kKv);
  attention("v_proj", kv_rows, hidden, kKv);
  attention("o_proj", hidden, q_rows, kQ);
  out->push_back({{prefix + "post_attention_layernorm.weight", {hidden}}, kNorm});
  mlp("gate_proj", config.intermediate_size, hidden);
  mlp("up_proj", config.intermediate_size, hidden);
  mlp("down_proj", hidden, config.intermediate_size);
}

std::vector<Requirement> Requirements(const ModelConfig& config) {
  std::vector<Requirement> out;
  out.push_back({{kEmbedding, {config.vocab_size, config.hidden_size}}, "vocab_size, hidden_size"});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) AppendLayer(config, layer, &out);
  out.push_back({{"model.norm.weight", {config.hidden_size}}, "hidden_size"});
  if (!config.tie_word_embeddings) {
    out.push_back({{kHead, {config.vocab_size, config.hidden_size}},
                   "tie_word_embeddings, vocab_size, hidden_size"});
  }
  return out;
}

absl::Status CheckRequirement(const Requirement& required, const Checkpoint& checkpoint) {
  const TensorInfo* found = checkpoint.Find(required.tensor.name);
  if (found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", required.tensor.name, "' is missing (config.json: ", required.keys, ")"));
  }
  if (found->shape != required.tensor.shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor '", required.tensor.name, "' has shape [", absl::StrJoin(found->shape, ", "),
        "], expected [", absl::StrJoin(required.tensor.shape, ", "),
        "] (config.json: ", required.keys, ")"));
  }
  if (!IsWeightDType(found->dtype)) {
    return absl::FailedPreconditionError(absl::StrCat("tensor '", required.tensor.name,
                                                      "' has dtype ", DTypeName(found->dtype),
                                                      "; F32, F16 and BF16 are supported"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ExpectedTensor> LlamaTensors(const ModelConfig& config) {
  std::vector<ExpectedTensor> out;
  for (Requirement& required : Requirements(config)) out.push_back(std::move(required.tensor));
  return out;
}

const char* HeadTensorName(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbedding : kHead;
}

absl::Status ValidateTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  absl::flat_hash_set<std::string> known;
  for (const Requirement& required : Requirements(config)) {
    RETURN_IF_ERROR(CheckRequirement(required, checkpoint));
    known.insert(required.tensor.name);
  }
  for (const TensorInfo* tensor : checkpoint.tensors()) {
    if (known.contains(tensor->name) || absl::EndsWith(tensor->name, ".rotary_emb.inv_freq") ||
        tensor->name == kHead) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", QuoteForError(tensor->name),
                     " has no place in the model that config.json describes (num_hidden_layers ",
                     config.num_layers, ", attention_bias, mlp_bias)"));
  }
  return absl::OkStatus();
}

}  // namespace baton
