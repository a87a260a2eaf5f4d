// From a model directory to a runner.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/model/llama.h"
#include "engine/model/synthetic.h"
#include "engine/runner/model_runner.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/llama_tensors.h"

namespace baton {
namespace {

constexpr int32_t kTokensMaxMax = 1 << 16;
constexpr int32_t kSequencesMaxMax = 1 << 14;

absl::Status CheckOptions(const LoadOptions& options, const ModelConfig& config) {
  const auto out_of_range = [](absl::string_view name, int64_t value, int64_t max) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", not from 1 to ", max));
  };
  if (options.tokens_max < 1 || options.tokens_max > kTokensMaxMax) {
    return out_of_range("tokens_max", options.tokens_max, kTokensMaxMax);
  }
  if (options.sequences_max < 1 || options.sequences_max > kSequencesMaxMax) {
    return out_of_range("sequences_max", options.sequences_max, kSequencesMaxMax);
  }
  if (options.sampled_vocab < 0 || options.sampled_vocab > config.vocab_size) {
    return out_of_range("sampled_vocab", options.sampled_vocab, config.vocab_size);
  }
  return absl::OkStatus();
}

// Powers of two below tokens_max, and tokens_max.
std::vector<int32_t> Buckets(int32_t tokens_max) {
  std::vector<int32_t> buckets;
  for (int32_t size = 1; size < tokens_max; size *= 2) buckets.push_back(size);
  buckets.push_back(tokens_max);
  return buckets;
}

// Roughly what a program of this model takes for activations and scratch, generously: used only to
// leave room for it when the KV pool takes all that is left.
int64_t ActivationBytes(const ModelConfig& config, const LoadOptions& options) {
  const int64_t per_token =
      4 * int64_t{config.hidden_size} * 4 +
      int64_t{config.num_heads + 2 * config.num_kv_heads} * config.head_dim * 6 +
      int64_t{config.intermediate_size} * 8;
  const int64_t per_sample = int64_t{config.vocab_size} * 4 + 16 * int64_t{config.hidden_size};
  constexpr int64_t kScratch = int64_t{512} << 20;
  return (options.tokens_max + options.sequences_max) * per_token +
         options.sequences_max * per_sample + kScratch;
}

absl::StatusOr<std::unique_ptr<KvPool>> CreatePool(const LoadOptions& options,
                                                   const KvLayout& layout,
                                                   const ModelConfig& config, Device& device) {
  RETURN_IF_ERROR(ValidateKvLayout(layout));
  int64_t bytes = options.kv_memory_bytes;
  if (bytes == kKvMemoryAuto) {
    bytes = (device.memory_max() - device.memory_used() - options.kv_reserve_bytes -
             ActivationBytes(config, options) * options.kv_sharers) /
            options.kv_sharers;
  }
  const int64_t num_blocks =
      options.kv_blocks > 0 ? options.kv_blocks : bytes / layout.block_bytes();
  if (num_blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV memory of ", bytes, " bytes holds no block of ", layout.block_bytes(),
                     " bytes (", layout.block_tokens, " tokens)"));
  }
  return device.CreateKvPool(layout,
                             static_cast<int32_t>(std::min<int64_t>(num_blocks, INT32_MAX)));
}

// The embedding speaks for the model: converters keep small tensors in wider types.
DType StoredType(const Checkpoint& checkpoint) {
  const TensorInfo* embedding = checkpoint.Find("model.embed_tokens.weight");
  return embedding != nullptr ? embedding->dtype : DType::kF32;
}

// What a model is made from: files, or a name.
struct ModelFiles {
  ModelConfig config;
  std::string revision;
  DType stored = DType::kBF16;
  std::unique_ptr<Checkpoint> checkpoint;  // Null for a synthetic model.
  std::unique_ptr<WeightSource> weights;
};

absl::StatusOr<ModelFiles> OpenModel(const std::string& path) {
  ModelFiles files;
  if (IsSyntheticModel(path)) {
    ASSIGN_OR_RETURN(files.config, SyntheticModelConfig(path));
    files.revision = path;
    files.weights = std::make_unique<SyntheticSource>(files.config);
    return files;
  }
  ASSIGN_OR_RETURN(files.config, ReadModelConfig(path));
  ASSIGN_OR_RETURN(files.checkpoint, Checkpoint::Open(path));
  RETURN_IF_ERROR(ValidateTensors(files.config, *files.checkpoint));
  files.revision = files.checkpoint->revision();
  files.stored = StoredType(*files.checkpoint);
  files.weights = std::make_unique<CheckpointSource>(*files.checkpoint);
  return files;
}

absl::StatusOr<LoadedModel> Load(const std::string& path, const LoadOptions& options,
                                 Device& device) {
  ASSIGN_OR_RETURN(const ModelFiles files, OpenModel(path));
  LoadedModel model;
  model.config = files.config;
  model.revision = files.revision;
  RETURN_IF_ERROR(CheckOptions(options, model.config));
  ASSIGN_OR_RETURN(
      const int32_t context_tokens,
      ResolveContextLimit(model.config, options.context_tokens, options.allow_beyond_model));
  const DType compute = device.ComputeType(files.stored);
  model.layout = LlamaKvLayout(model.config, options.block_tokens, compute);
  // What was asked for explicitly fails first, and fast; what is left is known after the weights.
  const bool pool_first = options.kv_blocks > 0 || options.kv_memory_bytes != kKvMemoryAuto;
  if (pool_first) {
    ASSIGN_OR_RETURN(model.kv, CreatePool(options, model.layout, model.config, device));
  }
  const int32_t sampled_vocab =
      options.sampled_vocab > 0 ? options.sampled_vocab : model.config.vocab_size;
  ASSIGN_OR_RETURN(const RecordedModel recorded,
                   RecordLlama(model.config, *files.weights, sampled_vocab, compute, device));
  model.weight_bytes = recorded.weight_bytes;
  if (!pool_first) {
    ASSIGN_OR_RETURN(model.kv, CreatePool(options, model.layout, model.config, device));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Program> program,
                   device.Compile(recorded.ops, Buckets(options.tokens_max),
                                  {.sequences_max = options.sequences_max,
                                   .samples_max = options.sequences_max,
                                   .context_tokens_max = context_tokens},
                                  *model.kv));
  model.runner = std::make_unique<ModelRunner>(std::move(program), *model.kv,
                                               StepLimits{.tokens_max = options.tokens_max,
                                                          .sequences_max = options.sequences_max,
                                                          .context_tokens_max = context_tokens},
                                               model.config.vocab_size);
  return model;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options,
                                      Device& device) {
  auto model = Load(directory, options, device);
  if (!model.ok()) return Annotate(model.status(), directory);
  return model;
}

}  // namespace baton
