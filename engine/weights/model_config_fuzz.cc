// Any bytes as config.json and generation_config.json: refused or read, never a crash, and what is
// read keeps the promises of model_config.h.
#include <cmath>
#include <cstdint>

#include "common/base/check.h"
#include "engine/weights/model_config.h"
#include "engine/weights/rope_frequencies.h"

namespace baton {
namespace {

constexpr char kPlainConfig[] =
    R"({"model_type":"llama","hidden_size":16,"num_hidden_layers":1,"num_attention_heads":2,
        "intermediate_size":12,"vocab_size":24,"max_position_embeddings":64})";

void CheckPromises(const ModelConfig& config) {
  CHECK(config.num_layers > 0 && config.vocab_size > 0 && config.max_position_embeddings > 0);
  CHECK(config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0);
  CHECK(config.head_dim >= kHeadDimMin && config.head_dim <= kHeadDimMax);
  CHECK_EQ(config.head_dim % 2, 0);
  for (const int32_t id : config.eos_ids) CHECK(id >= 0 && id < config.vocab_size);
  CHECK(KvBytesPerToken(config, DType::kF32) > 0);
  const RopeFrequencies rope =
      ComputeRopeFrequencies(config.head_dim, config.rope_theta, config.rope);
  for (const double frequency : rope.inverse) CHECK(std::isfinite(frequency));
  CHECK(std::isfinite(rope.attention_scaling));
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = baton::ParseModelConfig(text, std::nullopt);
  if (config.ok()) baton::CheckPromises(*config);
  const auto generation = baton::ParseModelConfig(baton::kPlainConfig, text);
  if (generation.ok()) baton::CheckPromises(*generation);
  return 0;
}
