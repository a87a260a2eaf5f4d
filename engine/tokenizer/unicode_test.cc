// Goal: UTF-8 is checked as Unicode's table 3-7 says, and the properties hold where versions of
// Unicode and the definitions of different libraries differ.
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/tokenizer_testing.h"

#include <gtest/gtest.h>

namespace baton::unicode {
namespace {

constexpr size_t kValid = absl::string_view::npos;

TEST(Unicode, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8(""), kValid);
  EXPECT_EQ(FindInvalidUtf8(absl::string_view("a\0b", 3)), kValid);
  EXPECT_EQ(FindInvalidUtf8("é漢😀\xF4\x8F\xBF\xBF"), kValid);
  EXPECT_EQ(FindInvalidUtf8("ab\xFF"), 2u);
  EXPECT_EQ(FindInvalidUtf8("a\xC3"), 1u);
  EXPECT_EQ(FindInvalidUtf8("\xC0\x80"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xE0\x9F\xBF"), 0u);
  EXPECT_EQ(FindInvalidUtf8("é\xED\xA0\x80"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\xF0\x8F\xBF\xBF"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xE2\x82\x28"), 0u);
  EXPECT_EQ(FindInvalidUtf8("\xF0\x9F\x98"), 0u);
}

TEST(Unicode, DecodesWhatItEncodes) {
  for (char32_t c = 0; c <= 0x10FFFF; c += 13) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "x";
    AppendUtf8(c, &text);
    ASSERT_EQ(FindInvalidUtf8(text), kValid);
    const DecodedChar front = DecodeFront(absl::string_view(text).substr(1));
    ASSERT_EQ(front.code_point, c);
    ASSERT_EQ(front.bytes, text.size() - 1);
    ASSERT_EQ(DecodeBack(text).code_point, c);
  }
}

TEST(Unicode, KnowsClassesAcrossVersions) {
  EXPECT_TRUE(IsNumeric(U'7') && IsNumeric(U'²') && IsNumeric(U'½') && IsNumeric(U'Ⅷ'));
  EXPECT_TRUE(IsNumeric(0x10D40)) << "a digit of Unicode 16";
  EXPECT_FALSE(IsNumeric(U'a'));
  EXPECT_TRUE(IsPunctuation(U'$') && IsPunctuation(U'。') && IsPunctuation(U'—'));
  EXPECT_FALSE(IsPunctuation(0x2E43)) << "punctuation since Unicode 9";
  EXPECT_TRUE(IsPunctuation(0x166D)) << "punctuation until Unicode 12";
  EXPECT_FALSE(IsPunctuation(U'€'));
  EXPECT_TRUE(IsWordCharacter(U'_') && IsWordCharacter(U'é') && IsWordCharacter(0x200D));
  EXPECT_FALSE(IsWordCharacter(U'-') || IsWordCharacter(U'²'));
  EXPECT_TRUE(IsWhitespace(0x85) && IsWhitespace(0x3000));
  EXPECT_FALSE(IsWhitespace(0x180E) || IsWhitespace(0x200B));
}

TEST(Unicode, Normalizes) {
  EXPECT_EQ(Normalize(NormalForm::kNfc, "e\u0301"), "é");
  EXPECT_EQ(Normalize(NormalForm::kNfd, "é"), "e\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "\u1100\u1161\u11A8"), "각");
  EXPECT_EQ(Normalize(NormalForm::kNfd, "각"), "\u1100\u1161\u11A8");
  EXPECT_EQ(Normalize(NormalForm::kNfkc, "ﬁ①"), "fi1");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "ﬁ①"), "ﬁ①");
  // Marks are ordered by class, and kept in order within a class.
  EXPECT_EQ(Normalize(NormalForm::kNfd, "a\u0301\u0323\u0300"), "a\u0323\u0301\u0300");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "a\u0301\u0323"), "ạ\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfc, std::string("a\0e\u0301", 5)), std::string("a\0é", 4));
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "\uFDFA").size(), 33u) << "the longest decomposition";
}

TEST(Unicode, OrdersAMillionMarksQuickly) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += "\u0301\u0323";
  const double start = baton::testing::ThreadCpuSeconds();
  EXPECT_EQ(Normalize(NormalForm::kNfd, text).size(), text.size());
  EXPECT_LT(baton::testing::ThreadCpuSeconds() - start, baton::testing::kOneSecond);
}

}  // namespace
}  // namespace baton::unicode
