// Goal: JSON is read strictly and within limits; every way to be wrong is an error that names the
// place.
#include "engine/tokenizer/json_value.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace baton {
namespace {

bool Parses(const std::string& text) { return ParseJson(text, "f").ok(); }

TEST(JsonValue, ReadsEveryKindOfValue) {
  const auto value = ParseJson(R"({"a":[1,-2,2.5,"x\u00e9",true,null],"b":{}})", "f");
  ASSERT_TRUE(value.ok()) << value.status();
  const auto& a = *value->as_object()->at(0).value.as_array();
  EXPECT_EQ(*a[0].as_int(), 1);
  EXPECT_EQ(*a[1].as_int(), -2);
  EXPECT_EQ(*a[2].as_double(), 2.5);
  EXPECT_EQ(*a[3].as_string(), "xé");
  EXPECT_TRUE(*a[4].as_bool());
  EXPECT_TRUE(a[5].is_null());
  EXPECT_TRUE(value->as_object()->at(1).value.as_object()->empty());
}

TEST(JsonValue, RefusesMalformedText) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1}x", "nul", "\"\xFF\"", "\"\\ud800\"",
                           "{\"a\" 1}", "[1e999]", "18446744073709551615", "'a'"}) {
    EXPECT_EQ(ParseJson(text, "f").status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(JsonValue, DoesNotEchoTheInput) {
  EXPECT_FALSE(absl::StrContains(ParseJson("{\"secret\":x}", "f").status().message(), "secret"));
}

TEST(JsonValue, RefusesDuplicateKeysAtEveryDepth) {
  EXPECT_FALSE(Parses(R"({"a":1,"a":2})"));
  EXPECT_FALSE(Parses(R"({"x":[{"a":1,"b":2,"\u0061":3}]})"));
  EXPECT_TRUE(Parses(R"({"x":[{"a":1},{"a":2}]})"));
}

TEST(JsonValue, RefusesDeepNestingWithoutRecursion) {
  EXPECT_TRUE(Parses(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(Parses(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(Parses(std::string(100'000, '[')));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(Parses(objects));
}

TEST(JsonValue, RefusesTooManyValuesAndTooManyBytes) {
  EXPECT_FALSE(ParseJson("[1,2,3]", "f", {.values_max = 3}).ok());
  EXPECT_TRUE(ParseJson("[1,2,3]", "f", {.values_max = 4}).ok());
  EXPECT_FALSE(ParseJson("[1,2,3]", "f", {.bytes_max = 6}).ok());
}

TEST(JsonObjectReader, NamesMembersThatNobodyAskedFor) {
  const auto value = ParseJson(R"({"a":1,"b":null,"c":"x"})", "f");
  ASSERT_TRUE(value.ok());
  auto reader = JsonObjectReader::Open(*value, "f.x");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(*reader->Int("a"), 1);
  EXPECT_EQ(reader->Find("b"), nullptr);
  const absl::Status status = reader->Done();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "f.x: member 'c'")) << status;
  reader->Ignore("c");
  EXPECT_TRUE(reader->Done().ok());
}

TEST(JsonObjectReader, NamesMembersOfTheWrongType) {
  const auto value = ParseJson(R"({"a":1,"b":"x"})", "f");
  ASSERT_TRUE(value.ok());
  auto reader = JsonObjectReader::Open(*value, "f");
  ASSERT_TRUE(reader.ok());
  for (const absl::Status& status :
       {reader->Bool("a", true).status(), reader->String("a").status(), reader->Int("b").status(),
        reader->Array("a").status(), reader->String("absent").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StartsWith(status.message(), "f.")) << status;
  }
  EXPECT_FALSE(JsonObjectReader::Open(*ParseJson("[]", "f"), "f").ok());
}

}  // namespace
}  // namespace baton
