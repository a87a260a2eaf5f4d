// Both layouts of config.json; end-of-sequence precedence (TXT-05); wrong sizes (FIL-04); settings
// that are not supported; the context limit (LIM-09).
#include "engine/weights/model_config.h"

#include "absl/strings/str_cat.h"
#include "engine/weights/weights_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Changes = std::map<std::string, std::string>;

ModelConfig MustParse(const Changes& changes, std::optional<absl::string_view> generation = {}) {
  const auto config = ParseModelConfig(TinyConfig(changes), generation);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig());
}

absl::Status Error(const Changes& changes, std::optional<absl::string_view> generation = {}) {
  return ParseModelConfig(TinyConfig(changes), generation).status();
}

TEST(ModelConfig, ReadsEveryField) {
  const ModelConfig config = MustParse({{"attention_bias", "true"},
                                        {"mlp_bias", "true"},
                                        {"tie_word_embeddings", "true"},
                                        {"rms_norm_eps", "1e-3"},
                                        {"rope_theta", "500000"}});
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.num_heads, 2);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 8);  // hidden_size / num_attention_heads
  EXPECT_EQ(config.intermediate_size, 12);
  EXPECT_EQ(config.vocab_size, 24);
  EXPECT_EQ(config.max_position_embeddings, 64);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-3f);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_EQ(config.rope.type, RopeScaling::Type::kNone);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_EQ(config.bos_id, 1);
}

TEST(ModelConfig, AbsentKeysHaveTheDefaultsOfTransformers) {
  const ModelConfig config = MustParse({{"num_key_value_heads", ""},
                                        {"rms_norm_eps", ""},
                                        {"rope_theta", ""},
                                        {"tie_word_embeddings", ""},
                                        {"hidden_act", ""},
                                        {"model_type", ""},
                                        {"bos_token_id", "null"},
                                        {"eos_token_id", ""}});
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.bos_id, std::nullopt);
  EXPECT_THAT(config.eos_ids, IsEmpty());
}

TEST(ModelConfig, HeadDimNeedNotBeHiddenSizeOverHeads) {
  EXPECT_EQ(MustParse({{"head_dim", "32"}}).head_dim, 32);
  EXPECT_EQ(MustParse({{"head_dim", "8"}, {"num_attention_heads", "3"}}).num_heads, 3);
}

// FIL-04: each of these was once loaded, or crashed, elsewhere.
TEST(ModelConfig, RefusesImpossibleSizesNamingTheKey) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> wrong = {
      {"num_hidden_layers",
       {"0", "-1", "2147483648", "18446744073709551615", "1.5", "\"1\"", "[1]"}},
      {"num_attention_heads", {"0", "-2", "3", "true"}},
      {"num_key_value_heads", {"0", "3", "4", "2147483648"}},
      {"hidden_size", {"0", "-16", "2147483648", "1e1"}},
      {"intermediate_size", {"0"}},
      {"vocab_size", {"0", "2147483648"}},
      {"max_position_embeddings", {"0", "-1", "4294967296"}},
      {"head_dim", {"0", "9", "-8"}},
      {"rms_norm_eps", {"-1", "2", "\"x\""}},
      {"rope_theta", {"0", "1", "-10000", "1e300"}},
      {"bos_token_id", {"-1", "24", "\"<s>\""}},
      {"eos_token_id", {"-1", "24", "[2,24]", "[\"2\"]", "\"2\"", "2.0", "{}"}},
      {"tie_word_embeddings", {"1", "\"true\""}},
      {"attention_bias", {"0"}},
      {"mlp_bias", {"\"no\""}}};
  for (const auto& [key, values] : wrong) {
    for (const std::string& value : values) {
      const absl::Status status = Error({{key, value}});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key << " " << value;
      EXPECT_THAT(status.message(), HasSubstr("config.json: ")) << value;
      EXPECT_THAT(status.message(), HasSubstr(key)) << value;
    }
  }
}

TEST(ModelConfig, RefusesWhenANeededKeyIsMissing) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    const absl::Status status = Error({{key, ""}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << key;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(key, " is missing")));
  }
}

TEST(ModelConfig, NeverIgnoresASettingThatIsNotSupported) {
  const std::vector<std::pair<std::string, std::string>> unsupported = {
      {"architectures", R"(["MixtralForCausalLM"])"},
      {"architectures", R"(["LlamaForSequenceClassification"])"},
      {"model_type", R"("mistral")"},
      {"hidden_act", R"("gelu")"},
      {"head_dim", "4"},
      {"head_dim", "512"},
      {"sliding_window", "4096"},
      {"layer_types", R"(["sliding_attention"])"},
      {"quantization_config", R"({"bits":4})"},
      {"partial_rotary_factor", "0.5"},
      {"attn_logit_softcapping", "50.0"},
      {"final_logit_softcapping", "30.0"},
      {"residual_multiplier", "0.22"},
      {"logits_scaling", "8"},
      {"num_local_experts", "8"},
      {"use_qk_norm", "true"}};
  for (const auto& [key, value] : unsupported) {
    const absl::Status status = Error({{key, value}});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << key << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
}

TEST(ModelConfig, AcceptsSettingsThatChangeNothing) {
  MustParse({{"sliding_window", "null"}, {"quantization_config", "null"}});
  MustParse({{"sliding_window", "4096"}, {"use_sliding_window", "false"}});
  MustParse({{"layer_types", R"(["full_attention"])"}, {"residual_multiplier", "1.0"}});
  MustParse({{"partial_rotary_factor", "1.0"}, {"pretraining_tp", "1"}, {"use_cache", "true"}});
  MustParse({{"hidden_act", R"("swish")"}, {"torch_dtype", R"("bfloat16")"}});
  MustParse({{"architectures", ""}, {"some_note", R"({"deep": [[[1]]]})"}});
}

TEST(ModelConfig, RefusesTextThatIsNoJsonObject) {
  for (const char* text : {"", "{", "[]", "\xFF\xFE", R"({"hidden_size":1,"hidden_size":2})"}) {
    const auto config = ParseModelConfig(text, std::nullopt);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(config.status().message(), HasSubstr("config.json"));
  }
  const absl::Status status = Error({}, "{]");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("generation_config.json"));
}

// TXT-05.
TEST(ModelConfig, GenerationConfigDecidesWhichTokensEndASequence) {
  EXPECT_THAT(MustParse({{"eos_token_id", "0"}}, R"({"eos_token_id":[5,7]})").eos_ids,
              ElementsAre(5, 7));
  EXPECT_THAT(MustParse({{"eos_token_id", "0"}}, R"({"eos_token_id":7})").eos_ids, ElementsAre(7));
  EXPECT_THAT(MustParse({{"eos_token_id", "[3,4,3]"}}).eos_ids, ElementsAre(3, 4));
  for (const char* generation : {"{}", R"({"eos_token_id":null})", R"({"temperature":1})"}) {
    EXPECT_THAT(MustParse({{"eos_token_id", "0"}}, generation).eos_ids, ElementsAre(0));
  }
  EXPECT_THAT(MustParse({}, R"({"eos_token_id":[]})").eos_ids, IsEmpty());
  EXPECT_EQ(MustParse({}, R"({"bos_token_id":9})").bos_id, 9);
  EXPECT_EQ(Error({}, R"({"eos_token_id":[5,24]})").code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelConfig, ReadsSamplingDefaults) {
  const SamplingDefaults sampling =
      MustParse({}, R"({"do_sample":true,"temperature":0.6,"top_k":50,"top_p":0.9,"min_p":0.05,
                        "repetition_penalty":1.1,"transformers_version":"5.17.0"})")
          .sampling;
  EXPECT_EQ(sampling.do_sample, true);
  EXPECT_FLOAT_EQ(sampling.temperature.value_or(-1), 0.6f);
  EXPECT_EQ(sampling.top_k, 50);
  EXPECT_FLOAT_EQ(sampling.top_p.value_or(-1), 0.9f);
  EXPECT_FLOAT_EQ(sampling.min_p.value_or(-1), 0.05f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty.value_or(-1), 1.1f);
  EXPECT_EQ(MustParse({}, "{}").sampling.temperature, std::nullopt);
  for (const char* wrong :
       {R"({"temperature":-1})", R"({"temperature":"hot"})", R"({"top_p":0})", R"({"top_p":1.5})",
        R"({"top_k":-1})", R"({"min_p":2})", R"({"do_sample":1})", R"({"repetition_penalty":0})"}) {
    const absl::Status status = Error({}, wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(status.message(), HasSubstr("generation_config.json: ")) << wrong;
  }
}

TEST(ModelConfig, ReadsRopeScalingInBothLayouts) {
  const char* llama3 =
      R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4.0,
          "original_max_position_embeddings":32})";
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ModelConfig config = MustParse({{key, llama3}});
    EXPECT_EQ(config.rope.type, RopeScaling::Type::kLlama3);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.rope.low_freq_factor, 1.0);
    EXPECT_EQ(config.rope.high_freq_factor, 4.0);
    EXPECT_EQ(config.rope.original_max_position_embeddings, 32);
    EXPECT_EQ(config.rope_theta, 10000.0);
  }
  const ModelConfig yarn =
      MustParse({{"rope_parameters", R"({"type":"yarn","factor":4,"rope_theta":1e6,"beta_fast":16,
                               "beta_slow":0,"mscale":0.7,"mscale_all_dim":1.0,
                               "attention_factor":1.5,"truncate":false})"}});
  EXPECT_EQ(yarn.rope.type, RopeScaling::Type::kYarn);
  EXPECT_EQ(yarn.rope_theta, 1e6);
  EXPECT_EQ(yarn.rope.original_max_position_embeddings, 64);  // max_position_embeddings
  EXPECT_EQ(yarn.rope.beta_fast, 16.0);
  EXPECT_EQ(yarn.rope.beta_slow, 1.0);  // 0 means the default
  EXPECT_EQ(yarn.rope.mscale, 0.7);
  EXPECT_EQ(yarn.rope.mscale_all_dim, 1.0);
  EXPECT_EQ(yarn.rope.attention_factor, 1.5);
  EXPECT_FALSE(yarn.rope.truncate);

  EXPECT_EQ(MustParse({{"rope_scaling", "null"}}).rope.type, RopeScaling::Type::kNone);
  EXPECT_EQ(
      MustParse({{"rope_parameters", R"({"rope_type":"default","rope_theta":5e5})"}}).rope_theta,
      5e5);
  EXPECT_EQ(MustParse({{"rope_scaling", R"({"type":"linear","factor":2.5})"}}).rope.factor, 2.5);
}

TEST(ModelConfig, RopePrecedenceIsThatOfTransformers) {
  const ModelConfig both =
      MustParse({{"rope_scaling", R"({"type":"linear","factor":2})"},
                 {"rope_parameters", R"({"rope_type":"linear","factor":3,"rope_theta":77})"}});
  EXPECT_EQ(both.rope.factor, 2.0);
  EXPECT_EQ(both.rope_theta, 10000.0);
  const std::string yarn = R"({"type":"yarn","factor":null,"original_max_position_embeddings":8})";
  EXPECT_EQ(MustParse({{"rope_scaling", yarn}}).rope.factor, 8.0);  // 64 / 8
  const ModelConfig outer =
      MustParse({{"rope_scaling", yarn}, {"original_max_position_embeddings", "16"}});
  EXPECT_EQ(outer.rope.original_max_position_embeddings, 16);
  EXPECT_EQ(outer.rope.factor, 4.0);
}

TEST(ModelConfig, RefusesRopeScalingItCannotCompute) {
  using Code = absl::StatusCode;
  const std::vector<std::tuple<std::string, std::string, Code>> wrong = {
      {R"({"type":"dynamic","factor":2})", "type", Code::kFailedPrecondition},
      {R"({"rope_type":"longrope","factor":2})", "rope_type", Code::kFailedPrecondition},
      {R"({"type":"linear"})", "factor", Code::kFailedPrecondition},
      {R"({"type":"linear","factor":0})", "factor", Code::kInvalidArgument},
      {R"({"type":"linear","factor":-2})", "factor", Code::kInvalidArgument},
      {R"({"type":"linear","factor":"2"})", "factor", Code::kInvalidArgument},
      {R"({"type":1})", "type", Code::kInvalidArgument},
      {R"({"type":"llama3","factor":8})", "low_freq_factor", Code::kFailedPrecondition},
      {R"({"type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4})",
       "low_freq_factor", Code::kInvalidArgument},
      {R"({"type":"yarn","factor":4,"beta_fast":1,"beta_slow":32})", "beta_fast",
       Code::kInvalidArgument},
      {R"({"type":"yarn","factor":4,"original_max_position_embeddings":0})",
       "original_max_position_embeddings", Code::kInvalidArgument},
      {R"({"type":"default","mrope_section":[1,2]})", "mrope_section", Code::kFailedPrecondition},
      {R"({"type":"default","partial_rotary_factor":0.5})", "partial_rotary_factor",
       Code::kFailedPrecondition},
      {"[]", "rope_scaling", Code::kInvalidArgument},
      {"2", "rope_scaling", Code::kInvalidArgument}};
  for (const auto& [value, key, code] : wrong) {
    const absl::Status status = Error({{"rope_scaling", value}});
    EXPECT_EQ(status.code(), code) << value << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(key)) << value;
    EXPECT_THAT(status.message(), HasSubstr("rope_scaling")) << value;
  }
}

// LIM-09.
TEST(ModelConfig, ContextBeyondTheModelNeedsAnOverride) {
  const ModelConfig config = MustParse({});
  EXPECT_EQ(*ResolveContextLimit(config, std::nullopt, false), 64);
  EXPECT_EQ(*ResolveContextLimit(config, 1, false), 1);
  EXPECT_EQ(*ResolveContextLimit(config, 64, false), 64);
  const absl::Status status = ResolveContextLimit(config, 256, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("max_position_embeddings"));
  EXPECT_THAT(status.message(), HasSubstr("256"));
  EXPECT_EQ(ResolveContextLimit(config, 65, false).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*ResolveContextLimit(config, 256, true), 256);
  for (const int32_t bad : {0, -1, (1 << 24) + 1}) {
    EXPECT_EQ(ResolveContextLimit(config, bad, true).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ModelConfig, RopeScalingStretchesTheContextThatMayBeAskedFor) {
  const ModelConfig linear = MustParse({{"rope_scaling", R"({"type":"linear","factor":4})"}});
  EXPECT_EQ(*ResolveContextLimit(linear, std::nullopt, false), 64);
  EXPECT_EQ(*ResolveContextLimit(linear, 256, false), 256);
  EXPECT_FALSE(ResolveContextLimit(linear, 257, false).ok());
  const ModelConfig yarn = MustParse(
      {{"rope_scaling", R"({"type":"yarn","factor":4,"original_max_position_embeddings":32})"}});
  EXPECT_EQ(*ResolveContextLimit(yarn, 128, false), 128);
  EXPECT_FALSE(ResolveContextLimit(yarn, 129, false).ok());
}

TEST(ModelConfig, CountsKvBytesPerToken) {
  const ModelConfig config = MustParse({{"num_hidden_layers", "3"}});
  EXPECT_EQ(KvBytesPerToken(config, DType::kBF16), 2 * 3 * 1 * 8 * 2);
  EXPECT_EQ(KvBytesPerToken(config, DType::kF32), 2 * 3 * 1 * 8 * 4);
}

TEST(ModelConfig, TokenizerMayBeSmallerThanTheModelButNotLarger) {
  const ModelConfig config = MustParse({});
  EXPECT_TRUE(CheckTokenizerSize(config, 20).ok());
  EXPECT_TRUE(CheckTokenizerSize(config, 24).ok());
  const absl::Status status = CheckTokenizerSize(config, 25);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("vocab_size"));
}

TEST(ModelConfig, ReadsTheFilesOfADirectory) {
  const TempFolder folder;
  const absl::Status missing = ReadModelConfig(folder.path()).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr(folder / "config.json"));

  folder.Write("config.json", TinyConfig());
  EXPECT_THAT(ReadModelConfig(folder.path())->eos_ids, ElementsAre(2));
  folder.Write("generation_config.json", R"({"eos_token_id":[5,7]})");
  EXPECT_THAT(ReadModelConfig(folder.path())->eos_ids, ElementsAre(5, 7));

  folder.Write("generation_config.json", "");
  EXPECT_EQ(ReadModelConfig(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
  folder.Remove("generation_config.json");
  folder.Write("config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(ReadModelConfig(folder.path()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ModelConfig, ReadsTheModelsOfTheRepository) {
  const auto succ = ReadModelConfig("models/succ");
  ASSERT_TRUE(succ.ok()) << succ.status();
  EXPECT_THAT(succ->eos_ids, ElementsAre(5, 7));
  EXPECT_EQ(succ->max_position_embeddings, 4096);
  const auto stories = ReadModelConfig("models/stories260K");
  ASSERT_TRUE(stories.ok()) << stories.status();
  EXPECT_EQ(stories->head_dim, 8);
  EXPECT_TRUE(stories->tie_word_embeddings);
  EXPECT_EQ(stories->bos_id, 1);
}

}  // namespace
}  // namespace baton
