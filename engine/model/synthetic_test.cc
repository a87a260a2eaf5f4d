// Synthetic models: shapes, the tokenizer, and values that repeat.
#include "engine/model/synthetic.h"

#include <string>
#include <vector>

#include "device/weight_segments.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(SyntheticModel, IsNamedByItsPrefix) {
  EXPECT_TRUE(IsSyntheticModel("synthetic:llama3-8b"));
  EXPECT_FALSE(IsSyntheticModel("models/synthetic"));
  const auto config = SyntheticModelConfig("synthetic:llama3-8b");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->hidden_size, 4096);
  const auto unknown = SyntheticModelConfig("synthetic:gpt-2");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("llama3-8b"));
}

TEST(SyntheticModel, TokenizerHasATokenForEveryIdAndEveryByte) {
  const auto tokenizer = Tokenizer::Create({SyntheticTokenizerJson(1000), "", ""});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 1000);
}

TEST(SyntheticModel, WeightsAreRandomAndRepeat) {
  const auto config = SyntheticModelConfig("synthetic:llama3-1b");
  ASSERT_TRUE(config.ok());
  const SyntheticSource source(*config);
  const auto segment = source.Segment("model.layers.3.mlp.down_proj.weight");
  ASSERT_TRUE(segment.ok());
  const WeightSegment segments[] = {*segment};
  EXPECT_TRUE(CheckWeightSegments(segments, WeightRole::kMatrix).ok());
  std::vector<float> first(8192);
  std::vector<float> again(8192);
  ConvertWeightRow(*segment, 7, DType::kF32, reinterpret_cast<std::byte*>(first.data()));
  ConvertWeightRow(*segment, 7, DType::kF32, reinterpret_cast<std::byte*>(again.data()));
  EXPECT_EQ(first, again);
  double sum = 0;
  double squares = 0;
  for (const float x : first) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  EXPECT_NEAR(sum / 8192, 0, 0.001);
  EXPECT_NEAR(squares / 8192 * 8192, 1, 0.05);  // Deviation 1 / sqrt(8192).
  EXPECT_EQ(source.Segment("model.layers.16.mlp.down_proj.weight").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton
