// What config.json and generation_config.json say about a Llama-architecture model, checked.
//
// A setting that changes the computation and is not supported is an error naming its key, never
// ignored. Both layouts are read: transformers 5 (rope_parameters) and older (rope_theta,
// rope_scaling). Defaults of absent keys are those of transformers' LlamaConfig.
//
// Thread-safe: pure functions over files.
#ifndef BATON_ENGINE_WEIGHTS_MODEL_CONFIG_H_
#define BATON_ENGINE_WEIGHTS_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"

namespace baton {

inline constexpr int32_t kHeadDimMin = 8;
inline constexpr int32_t kHeadDimMax = 256;

// Position scaling of the rotary embedding; rope_frequencies.h turns it into numbers.
struct RopeScaling {
  enum class Type { kNone, kLinear, kLlama3, kYarn };

  Type type = Type::kNone;
  double factor = 1.0;  // > 0; not used by kNone
  // Context of the pretraining; used by kLlama3 and kYarn.
  int32_t original_max_position_embeddings = 0;
  // kLlama3: low < high.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // kYarn.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
};

// Defaults that the model's publisher suggests; absent ones are the server's to choose.
// transformers samples only when do_sample is true.
struct SamplingDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;         // >= 0
  std::optional<int32_t> top_k;             // >= 0; 0 keeps all
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // > 0
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // even, kHeadDimMin..kHeadDimMax; need not be hidden_size / num_heads
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;  // rows of embedding and head; the tokenizer may have fewer tokens
  int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 10000.0;
  // Pairs (2i, 2i+1) instead of (i, i + head_dim/2). Never set by Llama checkpoints in this layout.
  bool rope_interleaved = false;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // biases of q, k, v and o
  bool mlp_bias = false;        // biases of gate, up and down
  RopeScaling rope;
  // Tokens that end a sequence; of generation_config.json if it names any, else of config.json.
  // Empty when neither does: such a model stops at the length limit only.
  std::vector<int32_t> eos_ids;
  std::optional<int32_t> bos_id;
  SamplingDefaults sampling;
};

// Reads <directory>/config.json and, if it is there, generation_config.json.
// ERRORS: InvalidArgument naming file and key: not JSON, wrong type, impossible value.
// FailedPrecondition naming file and key: the file or a needed key is missing; a setting that is
// not supported (architecture, activation, rope type, sliding window, quantisation, ...).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory);

// The same from text; without generation_config_json there is no such file.
absl::StatusOr<ModelConfig> ParseModelConfig(
    absl::string_view config_json, std::optional<absl::string_view> generation_config_json);

// Longest context (prompt and output tokens) the model may be served with. Without `requested` it
// is max_position_embeddings. A request beyond that is granted up to what a linear or yarn scaling
// stretches the positions to, and further only with allow_beyond_model (positions never trained).
// ERRORS: InvalidArgument: requested < 1 or above 2^24. FailedPrecondition naming
// max_position_embeddings: beyond the model and not allowed.
absl::StatusOr<int32_t> ResolveContextLimit(const ModelConfig& config,
                                            std::optional<int32_t> requested,
                                            bool allow_beyond_model);

// Bytes of keys and values that one token takes in all layers, stored as kv_dtype.
int64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype);

// ERRORS: FailedPrecondition when the tokenizer has more tokens than the model has rows
// (fewer is normal: rows are padded; ids without a token must be masked).
absl::Status CheckTokenizerSize(const ModelConfig& config, int64_t num_tokens);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_MODEL_CONFIG_H_
