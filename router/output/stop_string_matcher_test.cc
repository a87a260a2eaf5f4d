// The matcher is compared with a plain search over the whole text, cut in every way.
#include "router/output/stop_string_matcher.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

struct Result {
  std::string text;
  int match = -1;
  friend bool operator==(const Result&, const Result&) = default;
};

Result Match(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
             bool include = false) {
  StopStringMatcher matcher(stops, include);
  Result result;
  for (const std::string& piece : pieces) {
    if (matcher.Push(piece, &result.text)) {
      result.match = static_cast<int>(matcher.match_index());
      return result;
    }
  }
  matcher.Flush(&result.text);
  return result;
}

// The first end of a match; of those, the longest.
Result Oracle(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    Result best;
    size_t longest = 0;
    for (size_t k = 0; k < stops.size(); ++k) {
      const size_t size = stops[k].size();
      if (size <= end && size > longest && text.compare(end - size, size, stops[k]) == 0) {
        best = {text.substr(0, end - size), static_cast<int>(k)};
        longest = size;
      }
    }
    if (best.match >= 0) return best;
  }
  return {text, -1};
}

TEST(StopStringMatcher, HoldsBackExactlyWhatMayBeginAStopString) {
  StopStringMatcher matcher({"DEFGHIJ"}, false);
  std::string out;
  EXPECT_FALSE(matcher.Push("ABC", &out));
  EXPECT_EQ(out, "ABC");
  EXPECT_FALSE(matcher.Push("DEF", &out));
  EXPECT_FALSE(matcher.Push("G", &out));
  EXPECT_EQ(out, "ABC");
  EXPECT_EQ(matcher.held_bytes(), 4u);
  EXPECT_FALSE(matcher.Push("HIX", &out));
  EXPECT_EQ(out, "ABCDEFGHIX");
  EXPECT_EQ(matcher.held_bytes(), 0u);
}

TEST(StopStringMatcher, CutsBeforeOrAfterTheMatchAndDropsTheRest) {
  EXPECT_EQ(Match({"DEFGHIJ"}, {"ABC", "DEF", "G", "HI", "JK"}), (Result{"ABC", 0}));
  EXPECT_EQ(Match({"DEFGHIJ"}, {"ABC", "DEF", "G", "HI", "JK"}, true), (Result{"ABCDEFGHIJ", 0}));
}

TEST(StopStringMatcher, FindsTwoNewlinesHoweverTokensCutThem) {
  for (const auto& pieces : std::vector<std::vector<std::string>>{
           {"a", ".\n\n", "b"}, {"a.", "\n", "\n", "b"}, {"a.\n", "\nb"}}) {
    EXPECT_EQ(Match({"\n\n"}, pieces), (Result{"a.", 0}));
  }
}

TEST(StopStringMatcher, TheFirstToBecomeCompleteWinsAndThenTheLongest) {
  EXPECT_EQ(Match({"DEFGHIJ", "FG"}, {"ABCDEFGHIJ"}), (Result{"ABCDE", 1}));
  EXPECT_EQ(Match({"b", "ab"}, {"xab"}), (Result{"x", 1}));
}

TEST(StopStringMatcher, RestartsInsideAPartialMatch) {
  EXPECT_EQ(Match({"aab"}, {"aa", "a", "b"}), (Result{"a", 0}));
  EXPECT_EQ(Match({"abab"}, {"aba", "abab"}), (Result{"aba", 0}));
}

TEST(StopStringMatcher, HeldBackTextBeginsAtACharacter) {
  StopStringMatcher matcher({"é"}, false);
  std::string out;
  // è shares its first byte with é; it arrives whole, so it is passed on whole.
  EXPECT_FALSE(matcher.Push("è", &out));
  EXPECT_EQ(out, "è");
}

TEST(StopStringMatcher, EqualsAPlainSearchForRandomTextsCutAnywhere) {
  std::mt19937 rng(7);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(rng() % 4);
    for (std::string& stop : stops) {
      for (int n = 1 + static_cast<int>(rng() % 5); n > 0; --n) stop += "ab"[rng() % 2];
    }
    std::string text;
    for (int n = static_cast<int>(rng() % 30); n > 0; --n) text += "abc"[rng() % 3];
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + rng() % 4;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Result expected = Oracle(stops, text);
    Result got = Match(stops, pieces);
    // Equal strings listed twice: either index is right.
    if (got.match >= 0 && expected.match >= 0 && stops[got.match] == stops[expected.match]) {
      got.match = expected.match;
    }
    ASSERT_EQ(got, expected) << "text " << text << " round " << round;
  }
}

}  // namespace
}  // namespace baton::router
