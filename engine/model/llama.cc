#include "engine/model/llama.h"

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "engine/weights/llama_tensors.h"
#include "engine/weights/rope_frequencies.h"

namespace baton {
namespace {

class Recorder {
 public:
  Recorder(const ModelConfig& config, const WeightSource& source, int32_t sampled_vocab,
           DType compute, Device& device)
      : config_(config),
        source_(source),
        sampled_vocab_(sampled_vocab),
        compute_(compute),
        device_(device) {}

  absl::StatusOr<RecordedModel> Record() {
    const ValueId residual = Tokens(config_.hidden_size);
    const ValueId angles = Tokens(config_.head_dim);
    ASSIGN_OR_RETURN(const WeightPtr embedding,
                     Load({"model.embed_tokens.weight"}, WeightRole::kMatrix));
    Add(EmbedOp{embedding, residual});
    RETURN_IF_ERROR(RecordAngles(angles));
    ValueId delta = kNoValue;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      ASSIGN_OR_RETURN(delta, RecordAttention(layer, residual, delta, angles));
      ASSIGN_OR_RETURN(delta, RecordMlp(layer, residual, delta));
    }
    RETURN_IF_ERROR(RecordHead(residual, delta, embedding));
    return std::move(model_);
  }

 private:
  template <typename T>
  void Add(T op) {
    model_.ops.ops.push_back(std::move(op));
  }
  ValueId Tokens(int64_t cols) { return model_.ops.NewValue(ValueRows::kTokens, cols); }
  ValueId Samples(int64_t cols) { return model_.ops.NewValue(ValueRows::kSamples, cols); }

  // One weight from the named tensors, concatenated by rows.
  absl::StatusOr<WeightPtr> Load(std::initializer_list<std::string> names, WeightRole role) {
    std::vector<WeightSegment> segments;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const WeightSegment segment, source_.Segment(name));
      segments.push_back(segment);
    }
    auto weight = device_.Prepare(segments, role, compute_);
    if (!weight.ok()) return Annotate(weight.status(), *names.begin());
    model_.weight_bytes += (*weight)->bytes();
    return weight;
  }

  absl::Status RecordAngles(ValueId angles) {
    const RopeFrequencies frequencies =
        ComputeRopeFrequencies(config_.head_dim, config_.rope_theta, config_.rope);
    const std::vector<float> inverse(frequencies.inverse.begin(), frequencies.inverse.end());
    const WeightSegment segments[] = {{.data = {reinterpret_cast<const std::byte*>(inverse.data()),
                                                inverse.size() * sizeof(float)},
                                       .dtype = DType::kF32,
                                       .rows = static_cast<int64_t>(inverse.size()),
                                       .cols = 1,
                                       .random = std::nullopt}};
    ASSIGN_OR_RETURN(const WeightPtr weight,
                     device_.Prepare(segments, WeightRole::kVector, compute_));
    model_.weight_bytes += weight->bytes();
    Add(RopeAnglesOp{weight, static_cast<float>(frequencies.attention_scaling), angles});
    return absl::OkStatus();
  }

  absl::Status RecordNorm(const std::string& name, ValueId delta, ValueId residual, ValueId out) {
    ASSIGN_OR_RETURN(const WeightPtr gamma, Load({name}, WeightRole::kVector));
    Add(AddNormOp{delta, residual, gamma, config_.rms_norm_eps, out});
    return absl::OkStatus();
  }

  // Returns what the attention adds to the residual.
  absl::StatusOr<ValueId> RecordAttention(int32_t layer, ValueId residual, ValueId delta,
                                          ValueId angles) {
    const int32_t heads = config_.num_heads;
    const int32_t kv_heads = config_.num_kv_heads;
    const int32_t dim = config_.head_dim;
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const std::string attention = prefix + "self_attn.";
    const ValueId normed = Tokens(config_.hidden_size);
    RETURN_IF_ERROR(RecordNorm(prefix + "input_layernorm.weight", delta, residual, normed));
    ASSIGN_OR_RETURN(const WeightPtr qkv_weight,
                     Load({attention + "q_proj.weight", attention + "k_proj.weight",
                           attention + "v_proj.weight"},
                          WeightRole::kMatrix));
    ASSIGN_OR_RETURN(const WeightPtr o_weight,
                     Load({attention + "o_proj.weight"}, WeightRole::kMatrix));
    WeightPtr qkv_bias;
    WeightPtr o_bias;
    if (config_.attention_bias) {
      ASSIGN_OR_RETURN(qkv_bias, Load({attention + "q_proj.bias", attention + "k_proj.bias",
                                       attention + "v_proj.bias"},
                                      WeightRole::kBias));
      ASSIGN_OR_RETURN(o_bias, Load({attention + "o_proj.bias"}, WeightRole::kBias));
    }
    const ValueId qkv = Tokens(int64_t{heads + 2 * kv_heads} * dim);
    const ValueId q = Tokens(int64_t{heads} * dim);
    const ValueId attended = Tokens(int64_t{heads} * dim);
    const ValueId out = Tokens(config_.hidden_size);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    Add(LinearOp{normed, qkv_weight, qkv_bias, LinearEpilogue::kNone, qkv});
    Add(RopeKvWriteOp{qkv, angles, layer, heads, kv_heads, dim, q});
    Add(AttentionOp{q, layer, heads, kv_heads, dim, scale, attended});
    Add(LinearOp{attended, o_weight, o_bias, LinearEpilogue::kNone, out});
    return out;
  }

  absl::StatusOr<ValueId> RecordMlp(int32_t layer, ValueId residual, ValueId delta) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const std::string mlp = prefix + "mlp.";
    const ValueId normed = Tokens(config_.hidden_size);
    RETURN_IF_ERROR(
        RecordNorm(prefix + "post_attention_layernorm.weight", delta, residual, normed));
    ASSIGN_OR_RETURN(
        const WeightPtr gate_up,
        Load({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, WeightRole::kGatedMatrix));
    ASSIGN_OR_RETURN(const WeightPtr down, Load({mlp + "down_proj.weight"}, WeightRole::kMatrix));
    WeightPtr gate_up_bias;
    WeightPtr down_bias;
    if (config_.mlp_bias) {
      ASSIGN_OR_RETURN(gate_up_bias, Load({mlp + "gate_proj.bias", mlp + "up_proj.bias"},
                                          WeightRole::kGatedBias));
      ASSIGN_OR_RETURN(down_bias, Load({mlp + "down_proj.bias"}, WeightRole::kBias));
    }
    const ValueId inner = Tokens(config_.intermediate_size);
    const ValueId out = Tokens(config_.hidden_size);
    Add(LinearOp{normed, gate_up, gate_up_bias, LinearEpilogue::kSwiglu, inner});
    Add(LinearOp{inner, down, down_bias, LinearEpilogue::kNone, out});
    return out;
  }

  absl::Status RecordHead(ValueId residual, ValueId delta, const WeightPtr& embedding) {
    WeightPtr head = embedding;
    if (!config_.tie_word_embeddings) {
      ASSIGN_OR_RETURN(head, Load({HeadTensorName(config_)}, WeightRole::kMatrix));
    }
    // Only the rows that are sampled from are normalised and multiplied.
    const ValueId last_residual = Samples(config_.hidden_size);
    const ValueId last_delta = Samples(config_.hidden_size);
    const ValueId normed = Samples(config_.hidden_size);
    const ValueId logits = Samples(config_.vocab_size);
    Add(GatherRowsOp{residual, last_residual});
    Add(GatherRowsOp{delta, last_delta});
    RETURN_IF_ERROR(RecordNorm("model.norm.weight", last_delta, last_residual, normed));
    Add(LinearOp{normed, head, nullptr, LinearEpilogue::kNone, logits});
    Add(SampleOp{logits, sampled_vocab_});
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  const WeightSource& source_;
  const int32_t sampled_vocab_;
  const DType compute_;
  Device& device_;
  RecordedModel model_;
};

}  // namespace

KvLayout LlamaKvLayout(const ModelConfig& config, int32_t block_tokens, DType dtype) {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .block_tokens = block_tokens,
          .head_dim = config.head_dim,
          .dtype = dtype};
}

absl::StatusOr<RecordedModel> RecordLlama(const ModelConfig& config, const WeightSource& source,
                                          int32_t sampled_vocab, DType compute, Device& device) {
  CHECK(sampled_vocab > 0 && sampled_vocab <= config.vocab_size) << sampled_vocab;
  if (config.rope_interleaved) {
    return absl::FailedPreconditionError("interleaved rotary embedding is not supported");
  }
  if (config.num_layers < 1) return absl::FailedPreconditionError("num_hidden_layers is 0");
  return Recorder(config, source, sampled_vocab, compute, device).Record();
}

}  // namespace baton
