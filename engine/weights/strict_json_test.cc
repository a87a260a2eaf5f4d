// Hostile JSON: what nlohmann's parser would accept or spend memory on is refused.
#include "engine/weights/strict_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<nlohmann::json> Parse(absl::string_view text, JsonLimits limits = {}) {
  return ParseJsonObject(text, "some.json", limits);
}

TEST(StrictJson, ReadsTheSameDocumentAsTheLibrary) {
  const std::string text =
      R"({"a": [1, -2, 3.5, true, null, "x\u00e9\n", [], {}], "b": {"a": {"a": 18446744073709551615}}})";
  auto parsed = Parse(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, nlohmann::json::parse(text));
}

TEST(StrictJson, RefusesDuplicateKeysInOneObjectOnly) {
  EXPECT_TRUE(Parse(R"({"a": {"k": 1}, "b": {"k": 2}})").ok());
  const auto parsed = Parse(R"({"outer": {"k": 1, "other": [{"k": 1}], "k": 2}})");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(parsed.status().message(), HasSubstr("some.json: duplicate key 'k'"));
}

TEST(StrictJson, RefusesWhatIsNoObjectOrNoJson) {
  for (const char* text : {"", " ", "[]", "1", "\"x\"", "null", "{", "{\"a\":}", "{\"a\":1}x",
                           "{\"a\":1,}", "{'a':1}", "{\"a\":NaN}", "{\"a\":01}", "\xEF\xBB\xBF",
                           "{\"a\":\"\xFF\xFE\"}", "{\"\xC0\x80\":1}", "{\"a\":1e999}"}) {
    EXPECT_EQ(Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(StrictJson, RefusesDocumentsBeyondItsLimits) {
  EXPECT_THAT(Parse("{\"a\":" + std::string(100'000, '[')).status().message(),
              HasSubstr("nested deeper than 16"));

  EXPECT_TRUE(Parse(R"({"a":[[1]]})", {.depth_max = 3}).ok());
  EXPECT_FALSE(Parse(R"({"a":[[[1]]]})", {.depth_max = 3}).ok());
  EXPECT_TRUE(Parse(R"({"a":[1,2]})", {.values_max = 4}).ok());
  EXPECT_FALSE(Parse(R"({"a":[1,2,3]})", {.values_max = 4}).ok());
  EXPECT_TRUE(Parse(R"({"a":"12345"})", {.token_bytes_max = 5}).ok());
  EXPECT_FALSE(Parse(R"({"a":"123456"})", {.token_bytes_max = 5}).ok());
}

TEST(StrictJson, NulByteDoesNotEndTheText) {
  EXPECT_FALSE(Parse(absl::string_view("{}\0", 3)).ok());
  EXPECT_FALSE(Parse(absl::string_view("{}\0garbage", 10)).ok());
  EXPECT_FALSE(Parse(absl::string_view("{\"a\0b\":1}", 9)).ok());
  EXPECT_TRUE(Parse("{\"a\\u0000b\":1}").ok());
}

TEST(StrictJson, MeasuresTokensOutsideAndInsideStrings) {
  EXPECT_TRUE(CheckJsonTokens(R"({"abcd":[1234,"ef\"g"]})", 4).ok());
  EXPECT_FALSE(CheckJsonTokens(R"({"abcde":1})", 4).ok());
  EXPECT_FALSE(CheckJsonTokens(R"({"a":12345})", 4).ok());
  EXPECT_FALSE(CheckJsonTokens(R"({"a":     1})", 4).ok());
  EXPECT_FALSE(CheckJsonTokens(R"({"a":"{{{{{"})", 4).ok());
  EXPECT_TRUE(CheckJsonTokens(R"({"a":"\)", 4).ok());
}

TEST(StrictJson, QuotedTextIsPrintableAndShort) {
  EXPECT_EQ(QuoteForError("lm_head.weight"), "'lm_head.weight'");
  EXPECT_EQ(QuoteForError(absl::string_view("a\n\x1b[31m\0z", 9)), R"('a\n\x1b[31m\x00z')");
  EXPECT_LT(QuoteForError(std::string(100'000, 'x')).size(), 150u);
}

}  // namespace
}  // namespace baton
