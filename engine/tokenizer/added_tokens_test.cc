// Goal: added tokens are found leftmost-longest with their flags as in the reference.
#include "engine/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using Pattern = AddedTokenMatcher::Pattern;

Pattern Token(int32_t id, const std::string& text, bool special = false) {
  AddedToken token;
  token.id = id;
  token.content = text;
  token.special = special;
  return {token, text};
}

// "plain" and "#id(text)" pieces.
std::string Split(const std::vector<Pattern>& patterns, absl::string_view text,
                  bool parse_special = true) {
  const auto matcher = AddedTokenMatcher::Build(patterns);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  std::string out;
  size_t done = 0;
  for (const auto& segment : matcher->Split(text, parse_special)) {
    EXPECT_EQ(segment.span.begin, done) << "segments must cover the text";
    done = segment.span.end;
    const absl::string_view piece = text.substr(segment.span.begin, segment.span.size());
    if (segment.id < 0) {
      absl::StrAppend(&out, "[", piece, "]");
    } else {
      absl::StrAppend(&out, "#", segment.id, "(", piece, ")");
    }
  }
  EXPECT_EQ(done, text.size());
  return out;
}

TEST(AddedTokens, TakesTheLeftmostAndLongest) {
  const std::vector<Pattern> patterns = {Token(1, "ab"), Token(2, "abc"), Token(3, "bcd")};
  EXPECT_EQ(Split(patterns, "xabcdab"), "[x]#2(abc)[d]#1(ab)");
  EXPECT_EQ(Split(patterns, "bcdab"), "#3(bcd)#1(ab)");
  EXPECT_EQ(Split(patterns, ""), "");
  EXPECT_EQ(Split({}, "ab"), "[ab]");
}

TEST(AddedTokens, ReadsSpecialTokensOnlyWhenAsked) {
  const std::vector<Pattern> patterns = {Token(1, "<s>", true), Token(2, "<t>")};
  EXPECT_EQ(Split(patterns, "a<s>b<t>", true), "[a]#1(<s>)[b]#2(<t>)");
  EXPECT_EQ(Split(patterns, "a<s>b<t>", false), "[a<s>b]#2(<t>)");
}

TEST(AddedTokens, TakesSingleWordsOnlyBetweenOtherCharacters) {
  Pattern word = Token(1, "day");
  word.token.single_word = true;
  EXPECT_EQ(Split({word}, "day today day. dayé _day"), "#1(day)[ today ]#1(day)[. dayé _day]");
}

TEST(AddedTokens, TakesWhiteSpaceAlong) {
  Pattern left = Token(1, "<m>");
  left.token.lstrip = true;
  Pattern right = Token(2, "<r>");
  right.token.rstrip = true;
  EXPECT_EQ(Split({left, right}, "a \u3000<m> b<r> \n<m>c"),
            "[a]#1( \u3000<m>)[ b]#2(<r> \n)#1(<m>)[c]");
}

TEST(AddedTokens, DoesNotFindTokensInWhiteSpaceTakenAlong) {
  Pattern right = Token(1, "<r>");
  right.token.rstrip = true;
  Pattern newline = Token(2, "\n");
  newline.token.lstrip = true;
  EXPECT_EQ(Split({right, newline}, "<r> \n a \n"), "#1(<r> \n )[a]#2( \n)");
}

TEST(AddedTokens, RefusesBadPatterns) {
  EXPECT_FALSE(AddedTokenMatcher::Build({Token(1, "")}).ok());
  EXPECT_FALSE(AddedTokenMatcher::Build({Token(1, "a"), Token(2, "a")}).ok());
  EXPECT_FALSE(AddedTokenMatcher::Build({Token(1, std::string(513, 'a'))}).ok());
  EXPECT_TRUE(AddedTokenMatcher::Build({Token(1, std::string(512, 'a'))}).ok());
}

}  // namespace
}  // namespace baton
