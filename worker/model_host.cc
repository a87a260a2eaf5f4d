#include "worker/model_host.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "engine/model/llama.h"
#include "engine/model/synthetic.h"
#include "engine/runner/model_runner.h"
#include "engine/runner/null_executor.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/llama_tensors.h"
#include "engine/weights/model_config.h"

namespace baton::worker {
namespace {

// An absent file reads as empty, which is what TokenizerFiles means by absent.
std::string ReadOrEmpty(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// What a model is described by, before its weights are loaded.
struct ModelFacts {
  ModelConfig config;
  std::vector<v1::Artifact> artifacts;
  int32_t num_tokens = 0;
};

// The worker itself needs the tokenizer only once, for its size; a broken one is found here and not
// at the first router.
absl::StatusOr<int32_t> TokenizerSize(const TokenizerFiles& files) {
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(files));
  return tokenizer->vocab_size();
}

absl::StatusOr<ModelFacts> ReadFacts(const std::string& path, ArtifactStore& artifacts) {
  ModelFacts facts;
  if (IsSyntheticModel(path)) {
    ASSIGN_OR_RETURN(facts.config, SyntheticModelConfig(path));
    facts.artifacts = {artifacts.Add(v1::ARTIFACT_KIND_TOKENIZER_JSON,
                                     SyntheticTokenizerJson(facts.config.vocab_size))};
    facts.num_tokens = facts.config.vocab_size;
    return facts;
  }
  ASSIGN_OR_RETURN(facts.config, ReadModelConfig(path));
  ASSIGN_OR_RETURN(facts.artifacts, artifacts.AddModelDirectory(path));
  ASSIGN_OR_RETURN(facts.num_tokens, TokenizerSize({ReadOrEmpty(path + "/tokenizer.json"),
                                                    ReadOrEmpty(path + "/tokenizer.model"),
                                                    ReadOrEmpty(path + "/tokenizer_config.json")}));
  RETURN_IF_ERROR(CheckTokenizerSize(facts.config, facts.num_tokens));
  return facts;
}

// Bytes of a model's weights, before it is loaded; 0 when that cannot be told (its load will say
// why).
int64_t WeightBytes(const std::string& path) {
  int64_t bytes = 0;
  if (IsSyntheticModel(path)) {
    const absl::StatusOr<ModelConfig> config = SyntheticModelConfig(path);
    if (!config.ok()) return 0;
    for (const ExpectedTensor& tensor : LlamaTensors(*config)) {
      bytes += tensor.shape[0] * (tensor.shape.size() == 2 ? tensor.shape[1] : 1) * 2;
    }
    return bytes;
  }
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(path, error)) {
    if (file.path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(file.file_size(error));
    }
  }
  return bytes;
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

  StepExecutor* executor() {
    return null_executor != nullptr ? static_cast<StepExecutor*>(null_executor.get())
                                    : model.runner.get();
  }
  const KvPool& kv() const { return null_kv != nullptr ? *null_kv : *model.kv; }
};

ModelHost::ModelHost(Device& device) : device_(device) {}
ModelHost::~ModelHost() = default;

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Load(const WorkerOptions& options,
                                                           Device& device, int later_hosts) {
  if (options.models.empty()) return absl::InvalidArgumentError("no model to serve");
  auto host =
      std::unique_ptr<ModelHost>(new ModelHost(device));  // NOLINT(banned-new): private constructor
  // What the pools of the models before must leave, when they take all memory there is.
  std::vector<int64_t> weights;
  weights.reserve(options.models.size());
  for (const ModelSpec& spec : options.models) weights.push_back(WeightBytes(spec.path));
  const int64_t of_host = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  int64_t later_bytes = of_host * (1 + later_hosts);
  for (size_t i = 0; i < options.models.size(); ++i) {
    const ModelSpec& spec = options.models[i];
    later_bytes -= weights[i];
    const auto later_models =
        static_cast<int>(options.models.size() * static_cast<size_t>(1 + later_hosts) - i - 1);
    const absl::Status status = host->Add(spec, options, {later_bytes, later_models}, device);
    if (!status.ok()) return Annotate(status, absl::StrCat("model '", spec.name, "'"));
  }
  return host;
}

absl::Status ModelHost::LoadExecutor(const ModelSpec& spec, const WorkerOptions& options,
                                     const LaterModels& later, const ModelConfig& config,
                                     int32_t num_tokens, Device& device, Loaded& loaded) {
  const auto kv_bytes = static_cast<int64_t>(options.kv_memory_bytes / options.models.size());
  if (options.null_engine) {
    const KvLayout layout =
        LlamaKvLayout(config, options.block_tokens, device.ComputeType(DType::kF32));
    RETURN_IF_ERROR(ValidateKvLayout(layout));
    const int64_t blocks = options.kv_blocks > 0
                               ? options.kv_blocks
                               : std::max<int64_t>(1, kv_bytes / layout.block_bytes());
    ASSIGN_OR_RETURN(loaded.null_kv, device.CreateKvPool(layout, static_cast<int32_t>(blocks)));
    loaded.null_executor = std::make_unique<NullExecutor>(
        StepLimits{.tokens_max = options.tokens_per_step_max,
                   .sequences_max = options.sequences_max,
                   .context_tokens_max = config.max_position_embeddings},
        num_tokens - 1);
    loaded.model.layout = layout;
    loaded.model.revision = "null-engine";
    return absl::OkStatus();
  }
  LoadOptions load;
  load.kv_memory_bytes = kv_bytes;
  load.kv_blocks = options.kv_blocks;
  load.kv_reserve_bytes = later.weight_bytes + options.device_staging_bytes;
  load.kv_sharers = 1 + later.models;
  load.block_tokens = options.block_tokens;
  load.tokens_max = options.tokens_per_step_max;
  load.sequences_max = options.sequences_max;
  if (options.context_tokens > 0) load.context_tokens = options.context_tokens;
  load.sampled_vocab = num_tokens;
  ASSIGN_OR_RETURN(loaded.model, LoadModel(spec.path, load, device));
  return absl::OkStatus();
}

absl::Status ModelHost::Add(const ModelSpec& spec, const WorkerOptions& options,
                            const LaterModels& later, Device& device) {
  const TimePoint start = options.clock->Now();
  ASSIGN_OR_RETURN(const ModelFacts facts, ReadFacts(spec.path, artifacts_));
  auto loaded = std::make_unique<Loaded>();
  RETURN_IF_ERROR(
      LoadExecutor(spec, options, later, facts.config, facts.num_tokens, device, *loaded));
  const KvLayout& layout = loaded->model.layout;
  const KvPool& kv = loaded->kv();
  HostedModel hosted;
  hosted.executor = loaded->executor();
  hosted.kv = {.base = kv.base(),
               .block_bytes = static_cast<uint64_t>(layout.block_bytes()),
               .num_blocks = kv.num_blocks(),
               .block_tokens = layout.block_tokens,
               .num_layers = layout.num_layers};

  v1::ModelDescription& description = hosted.description;
  description.set_name(spec.name);
  description.set_revision(loaded->model.revision);
  for (const v1::Artifact& artifact : facts.artifacts) *description.add_artifacts() = artifact;
  description.set_context_tokens_max(hosted.executor->limits().context_tokens_max);
  description.set_vocabulary_size(facts.num_tokens);
  description.set_sampled_vocabulary_size(facts.num_tokens);
  for (const int32_t id : facts.config.eos_ids) description.add_eos_token_ids(id);
  FillDefaults(facts.config.sampling, *description.mutable_sampling_defaults());
  description.set_block_tokens(static_cast<uint32_t>(layout.block_tokens));
  description.set_num_blocks(static_cast<uint32_t>(kv.num_blocks()));
  description.set_kv_layout(layout.Fingerprint());

  LogInfo("model loaded",
          {{"model", spec.name},
           {"revision", loaded->model.revision.substr(0, 16)},
           {"device", device.name()},
           {"seconds", ToSeconds(options.clock->Now() - start)},
           {"weight_bytes", loaded->model.weight_bytes},
           {"kv_blocks", kv.num_blocks()},
           {"block_tokens", layout.block_tokens},
           {"kv_bytes", static_cast<int64_t>(kv.num_blocks()) * layout.block_bytes()},
           {"device_bytes_left", device.memory_max() - device.memory_used()}});
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
