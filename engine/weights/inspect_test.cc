// What `baton inspect` shows of directories, bare files and broken models.
#include "engine/weights/inspect.h"

#include "engine/weights/weights_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, DescribesAModelDirectory) {
  const auto report = InspectModel("models/stories260K");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->parameter_count, 260'032u);
  EXPECT_EQ(report->weight_bytes, 4u * 260'032);
  EXPECT_EQ(report->num_files, 1);
  EXPECT_TRUE(report->tensors_valid.ok()) << report->tensors_valid;
  const std::string text = report->ToText();
  for (const char* part : {"LlamaForCausalLM", "8 heads over 4 KV heads of 8", "tied head",
                           "1280 bytes", "complete      yes", "model.embed_tokens.weight"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }

  const auto json = nlohmann::json::parse(report->ToJson());
  EXPECT_EQ(json["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(json["config"]["num_key_value_heads"], 4);
  EXPECT_EQ(json["kv_bytes_per_token"]["F32"], 2 * 5 * 4 * 8 * 4);
  EXPECT_EQ(json["parameter_count"], 260'032);
  EXPECT_EQ(json["complete"], true);
  EXPECT_EQ(json["tensors"].size(), 47u);
  EXPECT_EQ(json["tensors"][0]["shape"], nlohmann::json({512, 64}));
}

TEST(Inspect, DescribesShardsAndMixedTypes) {
  const auto sharded = InspectModel("tests/golden/tiny_llama/sharded_bf16");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ(sharded->num_files, 3);
  EXPECT_TRUE(sharded->tensors_valid.ok());
  const auto mixed = InspectModel("tests/golden/tiny_llama/mixed_dtypes");
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  for (const char* type : {"F32: ", "F16: ", "BF16: "}) {
    EXPECT_THAT(mixed->ToText(), HasSubstr(type));
  }
}

TEST(Inspect, DescribesABareFile) {
  const TempFolder folder;
  folder.Write("x.safetensors", SafetensorsBytes({{"bias", {256}, DType::kF16},  //
                                                  {"qweight", {32, 8}, DType::kI32}}));
  const auto report = InspectModel(folder / "x.safetensors");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->config.has_value());
  EXPECT_EQ(report->parameter_count, 512u);
  EXPECT_EQ(report->weight_bytes, 512u + 1024);
  EXPECT_THAT(report->ToText(), Not(HasSubstr("architecture")));
  const auto json = nlohmann::json::parse(report->ToJson());
  EXPECT_FALSE(json.contains("architecture"));
  EXPECT_EQ(json["tensors"][1]["dtype"], "I32");
}

TEST(Inspect, SaysWhatAnIncompleteModelLacks) {
  const TempFolder folder;
  folder.Write("config.json", TinyConfig({{"num_hidden_layers", "2"}}));
  folder.Write("model.safetensors", SafetensorsBytes(TinyTensors()));
  const auto report = InspectModel(folder.path());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->tensors_valid.ok());
  EXPECT_THAT(report->ToText(), HasSubstr("model.layers.1.input_layernorm.weight"));
  EXPECT_EQ(nlohmann::json::parse(report->ToJson())["complete"], false);
}

TEST(Inspect, NamesOfTensorsCannotControlATerminal) {
  const TempFolder folder;
  folder.Write("x.safetensors", SafetensorsBytes({{"a\\u001b[2Jb\\n", {1}, DType::kU8}}));
  const auto report = InspectModel(folder / "x.safetensors");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->ToText(), HasSubstr("a\\x1b[2Jb\\n"));
  EXPECT_THAT(report->ToText(), Not(HasSubstr("\x1b")));
}

TEST(Inspect, ReportsWhatCannotBeRead) {
  EXPECT_EQ(InspectModel("models/absent").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(InspectModel("models").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(InspectModel("models/README.md").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
