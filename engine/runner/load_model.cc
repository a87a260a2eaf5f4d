// From a model directory to a runner.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/model/llama.h"
#include "engine/runner/model_runner.h"
#include "engine/weights/checkpoint.h"

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

absl::StatusOr<std::unique_ptr<KvPool>> CreatePool(const LoadOptions& options,
                                                   const KvLayout& layout, Device& device) {
  RETURN_IF_ERROR(ValidateKvLayout(layout));
  const int64_t num_blocks =
      options.kv_blocks > 0 ? options.kv_blocks : options.kv_memory_bytes / layout.block_bytes();
  if (num_blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV memory of ", options.kv_memory_bytes, " bytes holds no block of ",
                     layout.block_bytes(), " bytes (", layout.block_tokens, " tokens)"));
  }
  return device.CreateKvPool(layout,
                             static_cast<int32_t>(std::min<int64_t>(num_blocks, INT32_MAX)));
}

// The embedding speaks for the model: converters keep small tensors in wider types.
DType StoredType(const Checkpoint& checkpoint) {
  const TensorInfo* embedding = checkpoint.Find("model.embed_tokens.weight");
  return embedding != nullptr ? embedding->dtype : DType::kF32;
}

absl::StatusOr<LoadedModel> Load(const std::string& directory, const LoadOptions& options,
                                 Device& device) {
  LoadedModel model;
  ASSIGN_OR_RETURN(model.config, ReadModelConfig(directory));
  RETURN_IF_ERROR(CheckOptions(options, model.config));
  ASSIGN_OR_RETURN(
      const int32_t context_tokens,
      ResolveContextLimit(model.config, options.context_tokens, options.allow_beyond_model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  model.revision = checkpoint->revision();
  const DType compute = device.ComputeType(StoredType(*checkpoint));
  model.layout = LlamaKvLayout(model.config, options.block_tokens, compute);
  // Before the weights: what was asked for explicitly fails first, and fast.
  ASSIGN_OR_RETURN(model.kv, CreatePool(options, model.layout, device));
  const int32_t sampled_vocab =
      options.sampled_vocab > 0 ? options.sampled_vocab : model.config.vocab_size;
  ASSIGN_OR_RETURN(const RecordedModel recorded,
                   RecordLlama(model.config, *checkpoint, sampled_vocab, compute, device));
  model.weight_bytes = recorded.weight_bytes;
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
