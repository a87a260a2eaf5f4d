#include "engine/model/synthetic.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "engine/weights/llama_tensors.h"

namespace baton {
namespace {

constexpr absl::string_view kPrefix = "synthetic:";
constexpr int32_t kBytes = 256;

// Code point of a byte in the alphabet of byte-level BPE: printable bytes stand for themselves, the
// others are counted up from 256.
int32_t ByteLevelCodePoint(int32_t byte) {
  const auto printable = [](int32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) return byte;
  int32_t next = 256;
  for (int32_t b = 0; b < byte; ++b) {
    if (!printable(b)) ++next;
  }
  return next;
}

std::string JsonCharacter(int32_t code_point) {
  if (code_point == '"' || code_point == '\\') {
    return std::string("\\") + static_cast<char>(code_point);
  }
  if (code_point < 128) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3F))};
}

}  // namespace

bool IsSyntheticModel(absl::string_view path) { return absl::StartsWith(path, kPrefix); }

absl::StatusOr<ModelConfig> SyntheticModelConfig(absl::string_view path) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 128256;
  config.max_position_embeddings = 131072;
  config.rms_norm_eps = 1e-5f;
  config.rope_theta = 500000.0;
  const absl::string_view name = absl::StripPrefix(path, kPrefix);
  if (name == "llama3-8b") {
    config.hidden_size = 4096;
    config.num_layers = 32;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 128;
    config.intermediate_size = 14336;
  } else if (name == "llama3-1b") {
    config.hidden_size = 2048;
    config.num_layers = 16;
    config.num_heads = 32;
    config.num_kv_heads = 8;
    config.head_dim = 64;
    config.intermediate_size = 8192;
    config.tie_word_embeddings = true;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("no synthetic model '", name, "' (there are llama3-1b and llama3-8b)"));
  }
  return config;
}

std::string SyntheticTokenizerJson(int32_t vocab_size) {
  CHECK_GE(vocab_size, kBytes);
  std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
      R"("use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",)"
      R"("add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE",)"
      R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"merges":[],"vocab":{)";
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string token =
        id < kBytes ? JsonCharacter(ByteLevelCodePoint(id)) : absl::StrCat("synthetic", id);
    absl::StrAppend(&json, id == 0 ? "" : ",", "\"", token, "\":", id);
  }
  return json + "}}}";
}

SyntheticSource::SyntheticSource(const ModelConfig& config) {
  uint64_t seed = 1;
  for (const ExpectedTensor& tensor : LlamaTensors(config)) {
    const int64_t cols = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    shapes_[tensor.name] = {.rows = tensor.shape[0], .cols = cols, .seed = seed++};
    if (cols == 1) ones_.resize(std::max(ones_.size(), static_cast<size_t>(tensor.shape[0])), 1.0f);
  }
}

absl::StatusOr<WeightSegment> SyntheticSource::Segment(const std::string& name) const {
  const auto it = shapes_.find(name);
  if (it == shapes_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("tensor ", name, " is missing"));
  }
  const Shape& shape = it->second;
  WeightSegment segment{.data = {},
                        .dtype = DType::kBF16,
                        .rows = shape.rows,
                        .cols = shape.cols,
                        .random = std::nullopt};
  if (shape.cols == 1) {
    segment.data = {reinterpret_cast<const std::byte*>(ones_.data()),
                    static_cast<size_t>(shape.rows) * sizeof(float)};
    segment.dtype = DType::kF32;
  } else {
    // Keeps activations at about one.
    segment.random = RandomValues{.seed = shape.seed,
                                  .deviation = 1.0f / std::sqrt(static_cast<float>(shape.cols))};
  }
  return segment;
}

}  // namespace baton
