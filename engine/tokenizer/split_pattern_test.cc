// Goal: a pattern written for Oniguruma matches under PCRE2 what it would match there, or is
// refused; hostile texts and patterns end in an error.
#include "engine/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include "engine/tokenizer/oniguruma_pattern.h"
#include "engine/tokenizer/tokenizer_testing.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

std::vector<std::string> Matches(absl::string_view pattern, absl::string_view text) {
  const auto compiled = SplitPattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << pattern << ": " << compiled.status();
  if (!compiled.ok()) return {};
  Matcher matcher;
  std::vector<TextSpan> spans;
  const absl::Status status = compiled->FindAll(text, &matcher, &spans);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> out;
  for (const TextSpan& span : spans) {
    out.emplace_back(text.substr(span.begin, span.size()));
  }
  return out;
}

using Strings = std::vector<std::string>;

TEST(SplitPattern, FindsTheWordsOfGpt2sPattern) {
  EXPECT_EQ(Matches(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                    "It's  42 cats!\n\n x"),
            (Strings{"It", "'s", " ", " 42", " cats", "!", "\n\n", " x"}));
}

TEST(SplitPattern, TakesWhiteSpaceAsUnicodeHasIt) {
  // U+180E was white space once; to PCRE2's \s it still is.
  EXPECT_EQ(Matches(R"(\s)",
                    "a\xE1\xA0\x8E"
                    "b\xC2\xA0\xE3\x80\x80\x0B\xC2\x85"),
            (Strings{"\xC2\xA0", "\xE3\x80\x80", "\x0B", "\xC2\x85"}));
  EXPECT_EQ(Matches(R"(\S+)",
                    "a\xE1\xA0\x8E"
                    "b c"),
            (Strings{"a\xE1\xA0\x8E"
                     "b",
                     "c"}));
  EXPECT_EQ(Matches(R"([\S]+)",
                    "a\xE1\xA0\x8E"
                    "b c"),
            (Strings{"a\xE1\xA0\x8E"
                     "b",
                     "c"}));
  EXPECT_EQ(Matches(R"([^\s]+)",
                    "a\xE1\xA0\x8E"
                    "b c"),
            (Strings{"a\xE1\xA0\x8E"
                     "b",
                     "c"}));
}

TEST(SplitPattern, KnowsCharactersNewerThanPcre2s) {
  EXPECT_EQ(Matches(R"(\p{L})", "\xF0\xAE\xAF\xB0").size(), 1u);  // U+2EBF0, Unicode 15.1
  EXPECT_EQ(Matches(R"([^\p{L}])", "\xF0\xAE\xAF\xB0").size(), 0u);
  EXPECT_EQ(Matches(R"(\p{Han})", "\xF0\xAE\xAF\xB0").size(), 1u);
  EXPECT_EQ(Matches(R"(\P{L})", "\xF0\xAE\xAF\xB0").size(), 0u);
  EXPECT_EQ(Matches(R"(\p{^L})",
                    "\xF0\xAE\xAF\xB0"
                    "1"),
            Strings{"1"});
  EXPECT_EQ(Matches(R"(\d)",
                    "\xF0\x90\xB5\x80"
                    "1")
                .size(),
            2u);  // U+10D40, Unicode 16
}

TEST(SplitPattern, TakesHanWithoutScriptExtensions) {
  EXPECT_EQ(Matches(R"(\p{Han})", "、漢〆々"), (Strings{"漢", "々"}));
}

TEST(SplitPattern, MatchesLongSWithoutCase) {
  EXPECT_EQ(Matches(R"((?i:'s|'t))", "'S'ſ't"), (Strings{"'S", "'ſ", "'t"}));
}

TEST(SplitPattern, TreatsAnIntervalWithPlusAsRubyDoes) {
  EXPECT_EQ(Matches(R"(\p{N}{1,3}+)", "12345"), Strings{"12345"});  // repeated, not possessive
  EXPECT_EQ(Matches(R"(\p{N}{1,3})", "12345"), (Strings{"123", "45"}));
  EXPECT_EQ(Matches(R"(a(?:bc){2}+d)", "abcbcbcbcd"), Strings{"abcbcbcbcd"});
  EXPECT_EQ(Matches(R"(a{,2})", "aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(Matches(R"(a{x})", "a{x}"), Strings{"a{x}"});
  EXPECT_EQ(Matches(R"(a?+a)", "a"), Strings{});  // possessive
}

TEST(SplitPattern, TakesAnchorsByLine) {
  EXPECT_EQ(Matches(R"(^a)", "a\na\nb"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches(R"(b$)", "b\nb"), (Strings{"b", "b"}));
  EXPECT_EQ(Matches(R"(\Aa)", "a\na"), Strings{"a"});
  EXPECT_EQ(Matches(R"(.+)", "a\nb"), (Strings{"a", "b"}));
  EXPECT_EQ(Matches(R"((?m:.+))", "a\nb"), Strings{"a\nb"});
}

TEST(SplitPattern, TakesWordsAsOnigurumaDoes) {
  EXPECT_EQ(Matches(R"(\w+)", "a_é²-1 \xE0\xA4\x95\xE0\xA5\x8D"),
            (Strings{"a_é²", "1", "\xE0\xA4\x95\xE0\xA5\x8D"}));
  EXPECT_EQ(Matches(R"(\ba)", "a ba a"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches(R"(\Ba)", "a ba a"), Strings{"a"});
  EXPECT_EQ(Matches(R"(\h+)", "xFFz"), Strings{"FF"});
}

TEST(SplitPattern, SkipsEmptyMatchesBehindAMatch) {
  EXPECT_EQ(Matches(R"(a*)", "baé"), (Strings{"", "a", ""}));
}

TEST(SplitPattern, FindsALiteralWithoutOverlap) {
  const auto pattern = SplitPattern::Literal("a.a");
  ASSERT_TRUE(pattern.ok());
  Matcher matcher;
  std::vector<TextSpan> spans;
  ASSERT_TRUE(pattern->FindAll("a.a.a aba a.a", &matcher, &spans).ok());
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].begin, 0u);
  EXPECT_EQ(spans[1].begin, 10u);
  EXPECT_EQ(SplitPattern::Literal("").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SplitPattern, EscapesALiteralForAPattern) {
  const std::string literal = R"(a.b[c]{1}\d+^$|é)";
  EXPECT_EQ(Matches(EscapeForPattern(literal), "x" + literal + "y"), Strings{literal});
}

TEST(SplitPattern, RefusesWhatWouldMeanSomethingElse) {
  for (const absl::string_view pattern :
       {R"((a)\1)",   R"((?<name>a))",   R"([a&&b])", R"([a[bc]])", R"([[:alpha:]])", R"([\W])",
        R"([\P{L}])", R"(\p{Greekish})", R"(\p{Cn})", R"(a(?i)b)",  R"((?#x)a)",      R"(\K)",
        R"(\X)",      R"(\R)",           R"(\G)",     R"(\xFF)",    R"(a{2}?)",       R"(\pL)",
        R"([]a])",    R"(\Qa\E)",        R"(\01)"}) {
    const auto compiled = SplitPattern::Compile(pattern);
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kFailedPrecondition) << pattern;
  }
}

TEST(SplitPattern, RefusesMalformedPatterns) {
  for (const std::string& pattern :
       {std::string("(a"), std::string("[a"), std::string("a\\"), std::string("\\p{L"),
        std::string("*"), std::string("a)"), std::string("[z-a]"), std::string(70'000, 'a'),
        std::string(2000, '(')}) {
    EXPECT_EQ(SplitPattern::Compile(pattern).status().code(), absl::StatusCode::kInvalidArgument)
        << pattern.substr(0, 20);
  }
}

TEST(SplitPattern, GivesUpOnAnExponentialPatternWithAnError) {
  const auto pattern = SplitPattern::Compile(R"((?:a|aa)+[bc])");
  ASSERT_TRUE(pattern.ok());
  Matcher matcher;
  std::vector<TextSpan> spans;
  const absl::Status status = pattern->FindAll(std::string(5000, 'a'), &matcher, &spans);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(SplitPattern, ReadsAMillionSpacesInLinearTime) {
  const auto pattern =
      SplitPattern::Compile(R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  ASSERT_TRUE(pattern.ok());
  Matcher matcher;
  std::vector<TextSpan> spans;
  const double start = testing::ThreadCpuSeconds();
  ASSERT_TRUE(pattern->FindAll(std::string(1'000'000, ' ') + "x", &matcher, &spans).ok());
  EXPECT_EQ(spans.size(), 2u);
  EXPECT_LT(testing::ThreadCpuSeconds() - start, testing::kOneSecond);
}

}  // namespace
}  // namespace baton
