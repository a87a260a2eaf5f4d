// Goal: a tokenizer.model is encoded as SentencePiece does it, within limits, and a malformed one
// is an error. Method: small models written here; the real ones are in tokenizer_vectors_test.cc.
#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/sentencepiece_model.pb.h"
#include "engine/tokenizer/tokenizer_testing.h"

namespace baton {
namespace {

using testing::EncodePlain;
using Ids = std::vector<int32_t>;

void AddPiece(tokenizer::ModelProto* model, const std::string& text, float score,
              tokenizer::SentencePiece::Type type = tokenizer::SentencePiece::NORMAL) {
  auto* piece = model->add_pieces();
  piece->set_piece(text);
  piece->set_score(score);
  piece->set_type(type);
}

// <unk> 0, <s> 1, </s> 2, bytes 3..258, then pieces from 259.
tokenizer::ModelProto BaseModel() {
  tokenizer::ModelProto model;
  model.mutable_trainer_spec()->set_model_type(tokenizer::TrainerSpec::BPE);
  model.mutable_trainer_spec()->set_byte_fallback(true);
  model.mutable_normalizer_spec()->set_name("identity");
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(false);
  AddPiece(&model, "<unk>", 0, tokenizer::SentencePiece::UNKNOWN);
  AddPiece(&model, "<s>", 0, tokenizer::SentencePiece::CONTROL);
  AddPiece(&model, "</s>", 0, tokenizer::SentencePiece::CONTROL);
  for (int byte = 0; byte < 256; ++byte) {
    AddPiece(&model, absl::StrFormat("<0x%02X>", byte), 0, tokenizer::SentencePiece::BYTE);
  }
  return model;
}

constexpr int32_t kFirst = 259;

tokenizer::ModelProto AbModel() {
  tokenizer::ModelProto model = BaseModel();
  int score = 0;
  for (const char* text : {"▁a", "ab", "▁", "a", "b", "▁ab", "bb", "<", "s", ">"}) {
    AddPiece(&model, text, static_cast<float>(score--));
  }
  return model;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const tokenizer::ModelProto& model,
                                                        const std::string& config = "") {
  TokenizerFiles files;
  files.tokenizer_model = model.SerializeAsString();
  files.tokenizer_config_json = config;
  return Tokenizer::Create(files);
}

std::unique_ptr<const Tokenizer> MustCreate(const tokenizer::ModelProto& model,
                                            const std::string& config = "") {
  auto tokenizer = Create(model, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(SentencePieceTokenizer, MergesByScoreWithADummyPrefix) {
  const auto tokenizer = MustCreate(AbModel());
  EXPECT_EQ(EncodePlain(*tokenizer, "ab"), Ids{kFirst + 5});             // "▁a", then "▁ab"
  EXPECT_EQ(EncodePlain(*tokenizer, "aab"), (Ids{kFirst, kFirst + 1}));  // "▁a" before "ab"
  EXPECT_EQ(EncodePlain(*tokenizer, "bab"), (Ids{kFirst + 2, kFirst + 4, kFirst + 1}));
  EXPECT_EQ(EncodePlain(*tokenizer, ""), Ids{});
  EXPECT_EQ(EncodePlain(*tokenizer, " "), (Ids{kFirst + 2, kFirst + 2}));
  EXPECT_EQ(*tokenizer->Encode("b", {}), (Ids{1, kFirst + 2, kFirst + 4})) << "BOS";
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_TRUE(tokenizer->adds_bos());
}

TEST(SentencePieceTokenizer, FallsBackToBytes) {
  const auto tokenizer = MustCreate(AbModel());
  const auto byte = [](int value) { return 3 + value; };
  EXPECT_EQ(EncodePlain(*tokenizer, "é"), (Ids{kFirst + 2, byte(0xC3), byte(0xA9)}));
  EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, "a é\nb")), "a é\nb");
  EXPECT_EQ(tokenizer->TokenBytes(byte(0x0A)), "\n");
}

TEST(SentencePieceTokenizer, JoinsUnknownCharactersWithoutByteFallback) {
  tokenizer::ModelProto model = AbModel();
  model.mutable_trainer_spec()->set_byte_fallback(false);
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "axyza"), (Ids{kFirst, 0, kFirst + 3}));
}

TEST(SentencePieceTokenizer, MergesCharactersThatAreNoPieces) {
  tokenizer::ModelProto model = BaseModel();
  AddPiece(&model, "▁", -1);
  AddPiece(&model, "xy", 0);
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "xyx"), (Ids{kFirst, kFirst + 1, 3 + 'x'}));
}

TEST(SentencePieceTokenizer, TakesEqualScoresFromTheLeft) {
  tokenizer::ModelProto model = BaseModel();
  for (const char* text : {"▁", "a", "b"}) AddPiece(&model, text, -9);
  for (const char* text : {"ab", "ba"}) AddPiece(&model, text, 0);
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "aba"), (Ids{kFirst, kFirst + 3, kFirst + 1}));
  EXPECT_EQ(EncodePlain(*tokenizer, "bab"), (Ids{kFirst, kFirst + 4, kFirst + 2}));
}

TEST(SentencePieceTokenizer, DoesNotMakeControlTokensOfText) {
  const auto tokenizer = MustCreate(AbModel());
  const Ids plain = EncodePlain(*tokenizer, "a<s>b");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 1), 0);
  EXPECT_EQ(tokenizer->Decode(plain), "a<s>b");
  const auto parsed =
      tokenizer->Encode("a<s>b", {.add_special_tokens = false, .parse_special = true});
  // Each stretch has its own dummy prefix.
  EXPECT_EQ(*parsed, (Ids{kFirst, 1, kFirst + 2, kFirst + 4}));
  EXPECT_TRUE(tokenizer->IsSpecial(1) && tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(kFirst));
}

TEST(SentencePieceTokenizer, NeverMergesAcrossUserDefinedPieces) {
  tokenizer::ModelProto model = AbModel();
  AddPiece(&model, "bb▁", 0, tokenizer::SentencePiece::USER_DEFINED);
  const int32_t user = kFirst + 10;
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "abb a"), (Ids{kFirst, user, kFirst + 3}));
  EXPECT_FALSE(tokenizer->IsSpecial(user));
  EXPECT_EQ(tokenizer->TokenBytes(user), "bb ");
}

TEST(SentencePieceTokenizer, RemovesExtraSpacesWhenTheModelSaysSo) {
  tokenizer::ModelProto model = AbModel();
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(true);
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "  a   b  "), EncodePlain(*tokenizer, "a b"));
  EXPECT_EQ(EncodePlain(*tokenizer, "   "), Ids{});
}

TEST(SentencePieceTokenizer, LeavesOutTheDummyPrefixWhenTheModelSaysSo) {
  tokenizer::ModelProto model = AbModel();
  model.mutable_normalizer_spec()->set_add_dummy_prefix(false);
  const auto tokenizer = MustCreate(model);
  EXPECT_EQ(EncodePlain(*tokenizer, "a"), Ids{kFirst + 3});
  EXPECT_FALSE(tokenizer->strips_leading_space());
  EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, " a")), " a");
}

TEST(SentencePieceTokenizer, FollowsTokenizerConfig) {
  EXPECT_EQ(*MustCreate(AbModel(), R"({"add_bos_token":false})")->Encode("a", {}), Ids{kFirst});
  EXPECT_EQ(*MustCreate(AbModel(), R"({"add_eos_token":true})")->Encode("a", {}),
            (Ids{1, kFirst, 2}));
  const auto tokenizer =
      MustCreate(AbModel(),
                 R"({"bos_token":"<s>","added_tokens_decoder":{"1":{"content":"<s>","special":true},
          "300":{"content":"<|im_end|>","special":true},"301":{"content":"<tool>"}}})");
  EXPECT_EQ(tokenizer->vocab_size(), 302);
  EXPECT_EQ(tokenizer->SpecialTokenId("<|im_end|>"), 300);
  EncodeOptions options{.add_special_tokens = false, .parse_special = true};
  EXPECT_EQ(*tokenizer->Encode("a<|im_end|>", options), (Ids{kFirst, 300}));
  options.parse_special = false;
  EXPECT_EQ(*tokenizer->Encode("a<tool>", options), (Ids{kFirst, 301})) << "no control token";
  EXPECT_FALSE(Create(AbModel(), R"({"added_tokens_decoder":{"1":{"content":"other"}}})").ok());
  EXPECT_FALSE(Create(AbModel(), R"({"added_tokens_decoder":{"x":{"content":"y"}}})").ok());
  EXPECT_FALSE(
      Create(AbModel(), R"({"added_tokens_decoder":{"2147483647":{"content":"y"}}})").ok());
}

TEST(SentencePieceTokenizer, RefusesInvalidTextAndTooManyTokens) {
  const auto tokenizer = MustCreate(AbModel());
  EXPECT_EQ(tokenizer->Encode("a\xFF", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(tokenizer->Encode("a b", {.tokens_max = 4}).ok());
  EXPECT_EQ(tokenizer->Encode("a b", {.tokens_max = 3}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SentencePieceTokenizer, ReadsLongRunsQuickly) {
  const auto tokenizer = MustCreate(AbModel());
  for (const char c : {'a', 'b', ' ', '.'}) {
    const double start = testing::ThreadCpuSeconds();
    EncodePlain(*tokenizer, std::string(1'000'000, c));
    EXPECT_LT(testing::ThreadCpuSeconds() - start, testing::kOneSecond) << c;
  }
}

TEST(SentencePieceTokenizer, NamesWhatItDoesNotSupport) {
  const auto error = [](const std::function<void(tokenizer::ModelProto*)>& change) {
    tokenizer::ModelProto model = AbModel();
    change(&model);
    const absl::Status status = Create(model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  EXPECT_TRUE(absl::StrContains(error([](auto* m) {
                                  m->mutable_trainer_spec()->set_model_type(
                                      tokenizer::TrainerSpec::UNIGRAM);
                                }),
                                "UNIGRAM"));
  EXPECT_TRUE(absl::StrContains(
      error([](auto* m) { m->mutable_normalizer_spec()->set_precompiled_charsmap("x"); }),
      "precompiled_charsmap"));
  EXPECT_TRUE(absl::StrContains(
      error([](auto* m) { m->mutable_trainer_spec()->set_treat_whitespace_as_suffix(true); }),
      "treat_whitespace_as_suffix"));
  EXPECT_TRUE(absl::StrContains(
      error([](auto* m) { m->mutable_normalizer_spec()->set_escape_whitespaces(false); }),
      "escape_whitespaces"));
  EXPECT_TRUE(absl::StrContains(
      error([](auto* m) { m->mutable_pieces(kFirst)->set_type(tokenizer::SentencePiece::UNUSED); }),
      "unused"));
}

TEST(SentencePieceTokenizer, RefusesMalformedModels) {
  const auto refused = [](const std::function<void(tokenizer::ModelProto*)>& change) {
    tokenizer::ModelProto model = AbModel();
    change(&model);
    return Create(model).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto* m) { m->clear_pieces(); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_pieces(kFirst)->set_piece(""); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_pieces(kFirst)->set_piece("ab"); }));
  EXPECT_TRUE(
      refused([](auto* m) { m->mutable_pieces(kFirst)->set_piece(std::string(513, 'a')); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_pieces(kFirst)->set_score(std::nanf("")); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_pieces(3)->set_piece("<0xZZ>"); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_pieces(3)->set_piece("<0xff>"); }));
  EXPECT_TRUE(
      refused([](auto* m) { m->mutable_pieces(3)->set_type(tokenizer::SentencePiece::NORMAL); }));
  EXPECT_TRUE(
      refused([](auto* m) { m->mutable_pieces(1)->set_type(tokenizer::SentencePiece::UNKNOWN); }));
  EXPECT_TRUE(
      refused([](auto* m) { m->mutable_pieces(0)->set_type(tokenizer::SentencePiece::NORMAL); }));
  EXPECT_TRUE(refused([](auto* m) { m->mutable_trainer_spec()->set_bos_id(100'000); }));
  tokenizer::ModelProto model = AbModel();
  model.mutable_trainer_spec()->set_bos_id(-1);
  EXPECT_FALSE(MustCreate(model)->adds_bos());
}

TEST(SentencePieceTokenizer, SurvivesEveryTruncationAndManyDamages) {
  const std::string bytes = AbModel().SerializeAsString();
  const auto try_bytes = [](std::string damaged) {
    TokenizerFiles files;
    files.tokenizer_model = std::move(damaged);
    const auto tokenizer = Tokenizer::Create(files);
    if (!tokenizer.ok()) return;
    EXPECT_TRUE((*tokenizer)->Encode("ab <s> é", {}).ok());
  };
  for (size_t size = 0; size < bytes.size(); size += 7) try_bytes(bytes.substr(0, size));
  for (size_t at = 0; at < bytes.size(); at += 5) {
    for (const char c : {'\0', '\x7F', '\xFF', '\x0A'}) {
      std::string damaged = bytes;
      damaged[at] = c;
      try_bytes(std::move(damaged));
    }
  }
  // A length prefix far beyond the file.
  try_bytes(std::string("\x0A\xFF\xFF\xFF\xFF\x07", 6));
}

}  // namespace
}  // namespace baton
