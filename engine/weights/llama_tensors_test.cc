// A checkpoint is compared with its config: nothing missing, nothing of another shape, nothing
// ignored (FIL-04), and the head is the right matrix (FIL-11).
#include "engine/weights/llama_tensors.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/weights/weights_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

using Changes = std::map<std::string, std::string>;

class LlamaTensorsTest : public ::testing::Test {
 protected:
  absl::Status Validate(const Changes& changes, const std::vector<TestTensor>& tensors) {
    const auto config = ParseModelConfig(TinyConfig(changes), std::nullopt);
    if (!config.ok()) return config.status();
    folder_.Write("model.safetensors", SafetensorsBytes(tensors));
    const auto checkpoint = Checkpoint::Open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    return ValidateTensors(*config, **checkpoint);
  }

  void ExpectRefused(const Changes& changes, const std::vector<TestTensor>& tensors,
                     const std::string& tensor, const std::string& key) {
    const absl::Status status = Validate(changes, tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr(tensor));
    EXPECT_THAT(status.message(), HasSubstr(key));
  }

  TempFolder folder_;
};

std::vector<TestTensor> Without(const std::string& name) {
  std::vector<TestTensor> tensors = TinyTensors();
  std::erase_if(tensors, [&](const TestTensor& t) { return t.name == name; });
  return tensors;
}

std::vector<TestTensor> With(TestTensor tensor) {
  std::vector<TestTensor> tensors = Without(tensor.name);
  tensors.push_back(std::move(tensor));
  return tensors;
}

TEST_F(LlamaTensorsTest, AcceptsTheTensorsOfTheConfig) {
  EXPECT_TRUE(Validate({}, TinyTensors()).ok());
  std::vector<TestTensor> mixed = TinyTensors();
  for (size_t i = 0; i < mixed.size(); ++i) {
    mixed[i].dtype = i % 3 == 0 ? DType::kBF16 : i % 3 == 1 ? DType::kF16 : DType::kF32;
  }
  EXPECT_TRUE(Validate({}, mixed).ok());
}

TEST_F(LlamaTensorsTest, NamesAnyTensorThatIsMissing) {
  for (const TestTensor& tensor : TinyTensors()) {
    ExpectRefused({}, Without(tensor.name), tensor.name, "missing");
  }
}

// FIL-04: layers that the config declares and the file does not have.
TEST_F(LlamaTensorsTest, RefusesMoreLayersThanTheFileHas) {
  for (const char* layers : {"2", "513", "1024"}) {
    ExpectRefused({{"num_hidden_layers", layers}}, TinyTensors(),
                  "model.layers.1.input_layernorm.weight", "num_hidden_layers");
  }
}

TEST_F(LlamaTensorsTest, RefusesFewerLayersThanTheFileHas) {
  ExpectRefused({}, With({"model.layers.1.input_layernorm.weight", {16}}),
                "model.layers.1.input_layernorm.weight", "num_hidden_layers");
}

TEST_F(LlamaTensorsTest, RefusesShapesThatAreNotTheConfigs) {
  ExpectRefused({{"vocab_size", "25"}}, TinyTensors(), "model.embed_tokens.weight", "vocab_size");
  ExpectRefused({{"hidden_size", "32"}}, TinyTensors(), "model.embed_tokens.weight", "hidden_size");
  ExpectRefused({{"intermediate_size", "13"}}, TinyTensors(), "model.layers.0.mlp.gate_proj.weight",
                "intermediate_size");
  ExpectRefused({{"num_key_value_heads", "2"}}, TinyTensors(),
                "model.layers.0.self_attn.k_proj.weight", "num_key_value_heads");
  ExpectRefused({{"head_dim", "16"}}, TinyTensors(), "model.layers.0.self_attn.q_proj.weight",
                "head_dim");
  ExpectRefused({}, With({"model.norm.weight", {1, 16}}), "model.norm.weight", "[1, 16]");
  ExpectRefused({}, With({"model.layers.0.mlp.down_proj.weight", {12, 16}}),
                "model.layers.0.mlp.down_proj.weight", "[16, 12]");
}

TEST_F(LlamaTensorsTest, RefusesTypesThatKernelsCannotRead) {
  for (const DType dtype : kAllDTypes) {
    const absl::Status status = Validate({}, With({"model.norm.weight", {16}, dtype}));
    EXPECT_EQ(status.ok(), IsWeightDType(dtype)) << DTypeName(dtype);
    if (!status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr("model.norm.weight"));
      EXPECT_THAT(status.message(), HasSubstr(std::string(DTypeName(dtype))));
    }
  }
}

TEST_F(LlamaTensorsTest, BiasesAreAskedForAndRefusedAsTheConfigSays) {
  ExpectRefused({{"attention_bias", "true"}}, TinyTensors(), "model.layers.0.self_attn.q_proj.bias",
                "attention_bias");
  ExpectRefused({{"mlp_bias", "true"}}, TinyTensors(), "model.layers.0.mlp.gate_proj.bias",
                "mlp_bias");
  // A bias that the config does not mention would be ignored: not silently.
  ExpectRefused({}, With({"model.layers.0.self_attn.q_proj.bias", {16}}),
                "model.layers.0.self_attn.q_proj.bias", "attention_bias");
  std::vector<TestTensor> all = TinyTensors();
  for (const auto& [name, rows] :
       std::vector<std::pair<std::string, int64_t>>{{"self_attn.q_proj", 16},
                                                    {"self_attn.k_proj", 8},
                                                    {"self_attn.v_proj", 8},
                                                    {"self_attn.o_proj", 16},
                                                    {"mlp.gate_proj", 12},
                                                    {"mlp.up_proj", 12},
                                                    {"mlp.down_proj", 16}}) {
    all.push_back({absl::StrCat("model.layers.0.", name, ".bias"), {rows}});
  }
  EXPECT_TRUE(Validate({{"attention_bias", "true"}, {"mlp_bias", "true"}}, all).ok());
}

TEST_F(LlamaTensorsTest, IgnoresStoredRotaryFrequenciesOnly) {
  EXPECT_TRUE(Validate({}, With({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}})).ok());
  ExpectRefused({}, With({"model.layers.0.self_attn.q_norm.weight", {8}}), "q_norm", "no place");
  ExpectRefused({}, With({"extra\\u001b[31m", {8}}), "'extra\\x1b[31m'", "no place");
}

// FIL-11: {tied, untied, not said} x {head equal, head different, no head}.
TEST_F(LlamaTensorsTest, HeadFollowsTheConfigInEveryCombination) {
  const std::vector<TestTensor> equal = TinyTensors();
  const std::vector<TestTensor> different = With({"lm_head.weight", {24, 16}, DType::kF32, 'd'});
  const std::vector<TestTensor> absent = Without("lm_head.weight");
  for (const char* tied : {"true", "false", ""}) {
    const Changes changes = {{"tie_word_embeddings", tied}};
    const auto config = ParseModelConfig(TinyConfig(changes), std::nullopt);
    ASSERT_TRUE(config.ok()) << config.status();
    const bool is_tied = std::string(tied) == "true";
    EXPECT_EQ(HeadTensorName(*config), std::string(is_tied ? "model.embed_tokens.weight"  //
                                                           : "lm_head.weight"));
    EXPECT_TRUE(Validate(changes, equal).ok()) << tied;
    EXPECT_TRUE(Validate(changes, different).ok()) << tied;
    if (is_tied) {
      EXPECT_TRUE(Validate(changes, absent).ok());
    } else {
      ExpectRefused(changes, absent, "lm_head.weight", "tie_word_embeddings");
    }
  }
}

TEST_F(LlamaTensorsTest, TiedHeadIsListedOnce) {
  const auto config = ParseModelConfig(TinyConfig({{"tie_word_embeddings", "true"}}), std::nullopt);
  ASSERT_TRUE(config.ok());
  const std::vector<ExpectedTensor> tensors = LlamaTensors(*config);
  EXPECT_EQ(tensors.size(), TinyTensors().size() - 1);
  EXPECT_EQ(std::count_if(tensors.begin(), tensors.end(),
                          [](const auto& t) { return t.shape == std::vector<int64_t>{24, 16}; }),
            1);
}

TEST_F(LlamaTensorsTest, AcceptsEveryModelOfTheRepository) {
  std::vector<std::string> models = {"models/succ", "models/witness", "models/stories260K",
                                     "models/prose-1m-draft", "tests/testdata/models/succ_spm"};
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/tiny_llama")) {
    if (entry.is_directory()) models.push_back(entry.path().string());
  }
  EXPECT_GE(models.size(), 20u);
  for (const std::string& model : models) {
    const auto config = ReadModelConfig(model);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto checkpoint = Checkpoint::Open(model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status status = ValidateTensors(*config, **checkpoint);
    EXPECT_TRUE(status.ok()) << model << ": " << status;
  }
}

}  // namespace
}  // namespace baton
