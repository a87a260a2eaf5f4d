#include "engine/weights/weights_testing.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "gtest/gtest.h"

namespace baton {

TempFolder::TempFolder() : path_(absl::StrCat(testing::TempDir(), "baton_weights_XXXXXX")) {
  CHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TempFolder::operator/(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

void TempFolder::Write(absl::string_view name, absl::string_view content) const {
  std::ofstream out(*this / name, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  CHECK(out.good()) << *this / name;
}

std::string TempFolder::Read(absl::string_view name) const {
  std::ifstream in(*this / name, std::ios::binary);
  CHECK(in.good()) << *this / name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void TempFolder::Remove(absl::string_view name) const {
  CHECK(std::filesystem::remove(*this / name)) << *this / name;
}

std::string SafetensorsBytes(absl::string_view header, absl::string_view data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  absl::StrAppend(&out, header, data);
  return out;
}

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  std::vector<std::string> entries;
  std::string data;
  for (const TestTensor& tensor : tensors) {
    size_t bytes = DTypeBytes(tensor.dtype);
    for (const int64_t dimension : tensor.shape) bytes *= dimension;
    entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"", DTypeName(tensor.dtype),
                                   "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                   "],\"data_offsets\":[", data.size(), ",", data.size() + bytes,
                                   "]}"));
    data.append(bytes, tensor.fill);
  }
  return SafetensorsBytes(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data);
}

std::string TinyConfig(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> keys = {{"architectures", "[\"LlamaForCausalLM\"]"},
                                             {"model_type", "\"llama\""},
                                             {"hidden_act", "\"silu\""},
                                             {"hidden_size", "16"},
                                             {"num_hidden_layers", "1"},
                                             {"num_attention_heads", "2"},
                                             {"num_key_value_heads", "1"},
                                             {"intermediate_size", "12"},
                                             {"vocab_size", "24"},
                                             {"max_position_embeddings", "64"},
                                             {"rms_norm_eps", "1e-05"},
                                             {"rope_theta", "10000.0"},
                                             {"tie_word_embeddings", "false"},
                                             {"bos_token_id", "1"},
                                             {"eos_token_id", "2"}};
  for (const auto& [key, value] : changes) keys[key] = value;
  std::vector<std::string> lines;
  for (const auto& [key, value] : keys) {
    if (!value.empty()) lines.push_back(absl::StrCat("\"", key, "\": ", value));
  }
  return absl::StrCat("{", absl::StrJoin(lines, ",\n"), "}");
}

std::vector<TestTensor> TinyTensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {24, 16}},
          {layer + "input_layernorm.weight", {16}},
          {layer + "self_attn.q_proj.weight", {16, 16}},
          {layer + "self_attn.k_proj.weight", {8, 16}},
          {layer + "self_attn.v_proj.weight", {8, 16}},
          {layer + "self_attn.o_proj.weight", {16, 16}},
          {layer + "post_attention_layernorm.weight", {16}},
          {layer + "mlp.gate_proj.weight", {12, 16}},
          {layer + "mlp.up_proj.weight", {12, 16}},
          {layer + "mlp.down_proj.weight", {16, 12}},
          {"model.norm.weight", {16}},
          {"lm_head.weight", {24, 16}}};
}

}  // namespace baton
