#include "worker/model_host.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "engine/model/llama.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/null_executor.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/model_config.h"

namespace baton::worker {
namespace {

// An absent file reads as empty, which is what TokenizerFiles means by absent.
std::string ReadOrEmpty(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// The worker itself needs the tokenizer only once, for its size; a broken one is found here and not
// at the first router.
absl::StatusOr<int32_t> TokenizerSize(const std::string& directory) {
  const TokenizerFiles files{ReadOrEmpty(directory + "/tokenizer.json"),
                             ReadOrEmpty(directory + "/tokenizer.model"),
                             ReadOrEmpty(directory + "/tokenizer_config.json")};
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(files));
  return tokenizer->vocab_size();
}

void FillDefaults(const SamplingDefaults& defaults, v1::SamplingDefaults& proto) {
  // As transformers: without do_sample the model's publisher means greedy, whatever else is set.
  if (defaults.do_sample.has_value() && !*defaults.do_sample) {
    proto.set_temperature(0);
    return;
  }
  if (defaults.temperature) proto.set_temperature(*defaults.temperature);
  if (defaults.top_k) proto.set_top_k(*defaults.top_k);
  if (defaults.top_p) proto.set_top_p(*defaults.top_p);
  if (defaults.min_p) proto.set_min_p(*defaults.min_p);
}

}  // namespace

struct ModelHost::Loaded {
  // Of a real engine.
  LoadedModel model;
  // Of a null engine.
  std::unique_ptr<KvPool> null_kv;
  std::unique_ptr<NullExecutor> null_executor;
};

ModelHost::~ModelHost() = default;

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Load(const WorkerOptions& options,
                                                           Device& device) {
  if (options.models.empty()) return absl::InvalidArgumentError("no model to serve");
  auto host = std::unique_ptr<ModelHost>(new ModelHost);  // NOLINT(banned-new): private constructor
  for (const ModelSpec& spec : options.models) {
    const absl::Status status = host->Add(spec, options, device);
    if (!status.ok()) return Annotate(status, absl::StrCat("model '", spec.name, "'"));
  }
  return host;
}

absl::Status ModelHost::Add(const ModelSpec& spec, const WorkerOptions& options, Device& device) {
  const TimePoint start = options.clock->Now();
  ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(spec.path));
  ASSIGN_OR_RETURN(const std::vector<v1::Artifact> artifacts,
                   artifacts_.AddModelDirectory(spec.path));
  ASSIGN_OR_RETURN(const int32_t num_tokens, TokenizerSize(spec.path));
  RETURN_IF_ERROR(CheckTokenizerSize(config, num_tokens));
  const auto kv_bytes = static_cast<int64_t>(options.kv_memory_bytes / options.models.size());

  auto loaded = std::make_unique<Loaded>();
  HostedModel hosted;
  std::string revision;
  KvLayout layout;
  const KvPool* kv = nullptr;
  if (options.null_engine) {
    layout = LlamaKvLayout(config, options.block_tokens, device.ComputeType(DType::kF32));
    RETURN_IF_ERROR(ValidateKvLayout(layout));
    const int64_t blocks = options.kv_blocks > 0
                               ? options.kv_blocks
                               : std::max<int64_t>(1, kv_bytes / layout.block_bytes());
    ASSIGN_OR_RETURN(loaded->null_kv, device.CreateKvPool(layout, static_cast<int32_t>(blocks)));
    loaded->null_executor = std::make_unique<NullExecutor>(
        StepLimits{.tokens_max = options.tokens_per_step_max,
                   .sequences_max = options.sequences_max,
                   .context_tokens_max = config.max_position_embeddings},
        num_tokens - 1);
    hosted.executor = loaded->null_executor.get();
    kv = loaded->null_kv.get();
    revision = "null-engine";
  } else {
    LoadOptions load;
    load.kv_memory_bytes = kv_bytes;
    load.kv_blocks = options.kv_blocks;
    load.block_tokens = options.block_tokens;
    load.tokens_max = options.tokens_per_step_max;
    load.sequences_max = options.sequences_max;
    if (options.context_tokens > 0) load.context_tokens = options.context_tokens;
    load.sampled_vocab = num_tokens;
    ASSIGN_OR_RETURN(loaded->model, LoadModel(spec.path, load, device));
    hosted.executor = loaded->model.runner.get();
    kv = loaded->model.kv.get();
    layout = loaded->model.layout;
    revision = loaded->model.revision;
  }
  hosted.kv = {kv->base(), static_cast<uint64_t>(layout.block_bytes()), kv->num_blocks(),
               layout.block_tokens};

  v1::ModelDescription& description = hosted.description;
  description.set_name(spec.name);
  description.set_revision(revision);
  for (const v1::Artifact& artifact : artifacts) *description.add_artifacts() = artifact;
  description.set_context_tokens_max(hosted.executor->limits().context_tokens_max);
  description.set_vocabulary_size(num_tokens);
  description.set_sampled_vocabulary_size(num_tokens);
  for (const int32_t id : config.eos_ids) description.add_eos_token_ids(id);
  FillDefaults(config.sampling, *description.mutable_sampling_defaults());
  description.set_block_tokens(static_cast<uint32_t>(layout.block_tokens));
  description.set_num_blocks(static_cast<uint32_t>(kv->num_blocks()));
  description.set_kv_layout(layout.Fingerprint());

  LogInfo("model loaded",
          {{"model", spec.name},
           {"revision", revision.substr(0, 16)},
           {"seconds", ToSeconds(options.clock->Now() - start)},
           {"weight_bytes", loaded->model.weight_bytes},
           {"kv_blocks", kv->num_blocks()},
           {"block_tokens", layout.block_tokens},
           {"kv_bytes", static_cast<int64_t>(kv->num_blocks()) * layout.block_bytes()}});
  models_.push_back(std::move(hosted));
  loaded_.push_back(std::move(loaded));
  return absl::OkStatus();
}

std::map<std::string, std::string> ModelHost::kv_layouts() const {
  std::map<std::string, std::string> layouts;
  for (const HostedModel& model : models_) {
    layouts[model.name()] = model.description.kv_layout();
  }
  return layouts;
}

}  // namespace baton::worker
