// Text, counts, log-probabilities and the finish of scripted token sequences.
#include "router/output/output_assembler.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "router/testing/table_codec.h"

namespace baton::router {
namespace {

struct Outcome {
  std::vector<std::string> texts;
  std::string text;
  std::vector<int32_t> ids;
  size_t logprobs = 0;
  std::optional<OutputFinish> finish;
  int64_t completion_tokens = 0;
};

Outcome Play(const std::vector<std::string>& pieces, StopConditions stop,
             std::optional<FinishKind> end = std::nullopt, bool logprobs = false) {
  auto codec = std::make_shared<TableCodec>(pieces);
  if (stop.max_tokens == 1) stop.max_tokens = 1000;
  OutputAssembler assembler(std::move(stop), logprobs, codec->NewDecoder());
  Outcome outcome;
  for (size_t i = 0; i < pieces.size() && !outcome.finish.has_value(); ++i) {
    OutputDelta delta;
    outcome.finish = assembler.Push({.id = static_cast<int32_t>(256 + i), .logprob = -1}, &delta);
    outcome.texts.push_back(delta.text);
    outcome.text += delta.text;
    outcome.ids.insert(outcome.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    outcome.logprobs += delta.logprobs.size();
  }
  if (end.has_value() && !outcome.finish.has_value()) {
    OutputDelta delta;
    outcome.finish = assembler.End(*end, &delta);
    outcome.text += delta.text;
  }
  outcome.completion_tokens = assembler.completion_tokens();
  return outcome;
}

TEST(OutputAssembler, StopStringAcrossTokensLeaksNothingAndCountsTheCompletingToken) {
  const std::vector<std::string> pieces = {"ABC", "DEF", "G", "HI", "J", "K"};
  const Outcome outcome = Play(pieces, {.strings = {"DEFGHIJ"}});
  EXPECT_EQ(outcome.text, "ABC");
  ASSERT_TRUE(outcome.finish.has_value());
  EXPECT_EQ(outcome.finish->kind, FinishKind::kStopString);
  EXPECT_EQ(outcome.finish->stop_string, "DEFGHIJ");
  EXPECT_EQ(outcome.completion_tokens, 5);
  EXPECT_EQ(outcome.ids.size(), 5u);
  for (const std::string& text : outcome.texts) EXPECT_EQ(text.find('D'), std::string::npos);
  EXPECT_EQ(Play(pieces, {.strings = {"DEFGHIJ"}, .include_string = true}).text, "ABCDEFGHIJ");
}

TEST(OutputAssembler, CountsTheTokenThatCompletedTwoNewlines) {
  EXPECT_EQ(Play({"a", ".\n\n", "b"}, {.strings = {"\n\n"}}).completion_tokens, 2);
  EXPECT_EQ(Play({"a.", "\n", "\n", "b"}, {.strings = {"\n\n"}}).completion_tokens, 3);
  const Outcome third = Play({"a.\n", "\nb"}, {.strings = {"\n\n"}});
  EXPECT_EQ(third.completion_tokens, 2);
  EXPECT_EQ(third.text, "a.");
}

TEST(OutputAssembler, EndTokensAreCountedButTheirTextIsNot) {
  const Outcome eos = Play({"x", "</s>", "y"}, {.eos_token_ids = {257}});
  EXPECT_EQ(eos.text, "x");
  EXPECT_EQ(eos.finish->kind, FinishKind::kEos);
  EXPECT_EQ(eos.finish->token_id, 257);
  EXPECT_EQ(eos.completion_tokens, 2);
  EXPECT_EQ(eos.ids, (std::vector<int32_t>{256, 257}));
  const Outcome stop = Play({"x", "</s>"}, {.token_ids = {257}, .eos_token_ids = {257}});
  EXPECT_EQ(stop.finish->kind, FinishKind::kStopToken);
}

TEST(OutputAssembler, MaxTokensEndsWithLengthAndFlushesHeldText) {
  const Outcome outcome = Play({"a", "b", "c"}, {.strings = {"bX"}, .max_tokens = 2});
  EXPECT_EQ(outcome.text, "ab");
  EXPECT_EQ(outcome.finish->kind, FinishKind::kLength);
}

TEST(OutputAssembler, StopStringWinsOverLengthAtTheLastToken) {
  const Outcome outcome = Play({"a", "b", "c"}, {.strings = {"b"}, .max_tokens = 2});
  EXPECT_EQ(outcome.finish->kind, FinishKind::kStopString);
  EXPECT_EQ(outcome.text, "a");
}

TEST(OutputAssembler, CharactersSpreadOverTokensArriveWholeAndTokensAreNotHeldBack) {
  const std::string text = "삼겹살 é👩‍🚀";
  std::vector<std::string> pieces;
  for (char c : text) pieces.emplace_back(1, c);
  const Outcome outcome = Play(pieces, {}, FinishKind::kLength, true);
  EXPECT_EQ(outcome.text, text);
  EXPECT_EQ(outcome.ids.size(), text.size());
  EXPECT_EQ(outcome.logprobs, text.size());
  for (const std::string& piece : outcome.texts) {
    EXPECT_TRUE(piece.empty() || (piece[0] & 0xC0) != 0x80) << "half a character";
  }
}

TEST(OutputAssembler, AnUnfinishedCharacterAtTheEndBecomesAReplacementCharacter) {
  const Outcome outcome = Play({"a", "\xED\x95"}, {}, FinishKind::kLength);
  EXPECT_EQ(outcome.text, "a\xEF\xBF\xBD");
}

TEST(OutputAssembler, TextThatComesWithTheEndCanStillCompleteAStopString) {
  const Outcome outcome = Play({"a", "\xED"}, {.strings = {"\xEF\xBF\xBD"}}, FinishKind::kLength);
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.finish->kind, FinishKind::kStopString);
}

TEST(OutputAssembler, KeepsLogprobsOnlyWhenAskedFor) {
  EXPECT_EQ(Play({"a", "b"}, {}, FinishKind::kLength, false).logprobs, 0u);
  EXPECT_EQ(Play({"a", "b"}, {.eos_token_ids = {257}}, std::nullopt, true).logprobs, 2u);
}

}  // namespace
}  // namespace baton::router
