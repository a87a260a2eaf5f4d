// Goal: a stream's pieces are valid UTF-8, come as early as they can and add up to Decode of the
// list. Method: single bytes against table 3-7 of Unicode, the cases of the field reports
// (characters spread over tokens, invalid bytes, leading spaces), and random id lists.
#include "engine/tokenizer/incremental_detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/tokenizer_testing.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

using testing::MakeJsonTokenizer;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

std::string Assemble(absl::string_view bytes, InvalidUtf8 policy) {
  Utf8Assembler assembler(policy);
  std::string out;
  for (const char c : bytes) {
    assembler.Append(absl::string_view(&c, 1), &out);
    EXPECT_LE(assembler.pending_bytes(), 3u);
    EXPECT_EQ(unicode::FindInvalidUtf8(out), absl::string_view::npos);
  }
  assembler.Finish(&out);
  return out;
}

// One token a byte (id = byte), then the extra tokens from id 256.
std::unique_ptr<const Tokenizer> ByteTokenizer(const std::vector<std::string>& extra = {}) {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocab, byte == 0 ? "" : ",",
                    testing::JsonQuote(byte_level::CharOfByte(static_cast<uint8_t>(byte))), ":",
                    byte);
  }
  for (size_t i = 0; i < extra.size(); ++i) {
    absl::StrAppend(&vocab, ",", testing::JsonQuote(extra[i]), ":", 256 + i);
  }
  auto tokenizer = MakeJsonTokenizer(
      absl::StrCat(R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},)",
                   R"("added_tokens":[{"id":1000,"content":"<|end|>","special":true}],)",
                   R"("model":{"type":"BPE","merges":[],"vocab":{)", vocab, "}}}"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// As Llama's: ▁ is a space, <0xXX> bytes, one leading space is stripped. Ids 0..255 are the bytes.
std::unique_ptr<const Tokenizer> SpaceMarkTokenizer(const std::vector<std::string>& extra) {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocab, byte == 0 ? "" : ",", absl::StrFormat("\"<0x%02X>\":%d", byte, byte));
  }
  for (size_t i = 0; i < extra.size(); ++i) {
    absl::StrAppend(&vocab, ",", testing::JsonQuote(extra[i]), ":", 256 + i);
  }
  auto tokenizer = MakeJsonTokenizer(absl::StrCat(
      R"({"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)",
      R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)",
      R"({"type":"Strip","content":" ","start":1,"stop":0}]},)",
      R"("added_tokens":[{"id":1000,"content":"<s>","special":true}],)",
      R"("model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":{)", vocab, "}}}"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   const DecodeOptions& options = {}) {
  IncrementalDetokenizer detokenizer(&tokenizer, options);
  std::string out;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.Push(id);
    EXPECT_EQ(unicode::FindInvalidUtf8(piece), absl::string_view::npos);
    out += piece;
  }
  return out + detokenizer.Finish();
}

TEST(Utf8Assembler, PassesEveryCharacterThrough) {
  for (const InvalidUtf8 policy :
       {InvalidUtf8::kReplaceMaximalSubpart, InvalidUtf8::kReplaceEachByte}) {
    for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 37) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text;
      unicode::AppendUtf8(c, &text);
      ASSERT_EQ(Assemble(text, policy), text) << static_cast<uint32_t>(c);
    }
  }
}

TEST(Utf8Assembler, ReplacesInvalidBytesByPolicy) {
  struct Case {
    std::string bytes;
    int subparts;  // U+FFFD by maximal subpart
    std::string tail;
  };
  // From Unicode's table 3-8 and from UTF-8's usual faults.
  const Case cases[] = {{"\x80\x80\x80", 3, ""},      {"\xC0\xAF", 2, ""},
                        {"\xE0\x80\xAF", 3, ""},      {"\xF0\x80\x80\xAF", 4, ""},
                        {"\xED\xA0\x80", 3, ""},      {"\xF4\x91\x92\x93", 4, ""},
                        {"\xE1\x80", 1, ""},          {"\xF0\x9F\x98", 1, ""},
                        {"\xF0\x9F\x98\x41", 1, "A"}, {"\xE2\x82\xC3\xA9", 1, "é"},
                        {"\xFF\xFE", 2, ""},          {"\xC3\x28", 1, "("},
                        {"\xF5\x80", 2, ""},          {"\xE1\x80\xE2\xF0\x91", 3, ""}};
  for (const Case& c : cases) {
    std::string want;
    for (int i = 0; i < c.subparts; ++i) want += kReplacement;
    EXPECT_EQ(Assemble(c.bytes, InvalidUtf8::kReplaceMaximalSubpart), want + c.tail)
        << absl::CHexEscape(c.bytes);
    want.clear();
    const size_t valid = c.tail.size();
    for (size_t i = 0; i < c.bytes.size() - valid; ++i) want += kReplacement;
    EXPECT_EQ(Assemble(c.bytes, InvalidUtf8::kReplaceEachByte), want + c.tail)
        << absl::CHexEscape(c.bytes);
  }
}

TEST(IncrementalDetokenizer, NeverEmitsHalfACharacter) {
  const auto tokenizer = ByteTokenizer();
  const std::string text = "삼겹살 é👩‍🚀";
  IncrementalDetokenizer detokenizer(tokenizer.get());
  std::string out;
  for (const char c : text) {
    const std::string piece = detokenizer.Push(static_cast<unsigned char>(c));
    EXPECT_EQ(unicode::FindInvalidUtf8(piece), absl::string_view::npos);
    EXPECT_LE(detokenizer.pending_bytes(), 3u);
    out += piece;
    EXPECT_EQ(out, text.substr(0, out.size()));
  }
  EXPECT_EQ(out, text) << "the last character must not wait for Finish";
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(IncrementalDetokenizer, DoesNotHoldBackBytesThatCannotBecomeACharacter) {
  const auto tokenizer = ByteTokenizer();
  IncrementalDetokenizer detokenizer(tokenizer.get());
  EXPECT_EQ(detokenizer.Push(0xC3), "");
  EXPECT_EQ(detokenizer.Push('a'), absl::StrCat(kReplacement, "a"));
  EXPECT_EQ(detokenizer.Push('b'), "b");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(detokenizer.Push(0x80), kReplacement);
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Finish(), kReplacement);
}

TEST(IncrementalDetokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  const auto tokenizer = ByteTokenizer();
  const std::vector<int32_t> ids = {'a', 1000, 'b', 0xC3, 1000, 0xA9};
  EXPECT_EQ(Stream(*tokenizer, ids), "abé");
  EXPECT_EQ(Stream(*tokenizer, ids, {.skip_special = false}),
            absl::StrCat("a<|end|>b", kReplacement, "<|end|>", kReplacement));
}

TEST(IncrementalDetokenizer, IgnoresUnknownIds) {
  const auto tokenizer = ByteTokenizer();
  EXPECT_EQ(Stream(*tokenizer, {-1, 'a', 500, INT32_MAX, INT32_MIN, 'b'}), "ab");
}

TEST(IncrementalDetokenizer, KeepsTheSpaceOfByteLevelVocabularies) {
  const auto tokenizer = ByteTokenizer({"Ġa", "Ġb"});
  EXPECT_FALSE(tokenizer->strips_leading_space());
  EXPECT_EQ(Stream(*tokenizer, {256, 257}), " a b");
}

TEST(IncrementalDetokenizer, StripsOneLeadingSpaceOfSentencePieceOnce) {
  const auto tokenizer = SpaceMarkTokenizer({"▁", "▁leading", "▁x", "▁▁▁"});
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_EQ(Stream(*tokenizer, {256, 257, 258}), " leading x");
  EXPECT_EQ(Stream(*tokenizer, {257, 258}), "leading x");
  EXPECT_EQ(Stream(*tokenizer, {1000, 257, 258}), "leading x");
  EXPECT_EQ(Stream(*tokenizer, {259, 258}), "   x");
  EXPECT_EQ(Stream(*tokenizer, {1000, 257}, {.skip_special = false}), "<s> leading");
}

TEST(IncrementalDetokenizer, KeepsTheLeadingSpaceBehindAPrompt) {
  const auto tokenizer = SpaceMarkTokenizer({"▁", "▁leading", "▁x"});
  EXPECT_EQ(Stream(*tokenizer, {257, 258}, {.follows_prompt = true}), " leading x");
}

TEST(IncrementalDetokenizer, StartsAgainAfterFinish) {
  const auto tokenizer = SpaceMarkTokenizer({"▁x"});
  IncrementalDetokenizer detokenizer(tokenizer.get());
  EXPECT_EQ(detokenizer.Push(256), "x");
  EXPECT_EQ(detokenizer.Push(256), " x");
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Finish(), kReplacement);
  EXPECT_EQ(detokenizer.Push(256), "x");
}

TEST(IncrementalDetokenizer, ReplacesEachInvalidByteOfAByteFallbackVocabulary) {
  const auto tokenizer = SpaceMarkTokenizer({"▁x"});
  EXPECT_EQ(Stream(*tokenizer, {0xE2, 0x96, 256}), absl::StrCat(kReplacement, kReplacement, " x"));
  EXPECT_EQ(Stream(*tokenizer, {0xE2, 0x96, 0x81}), "▁") << "a character, not a space mark";
}

TEST(IncrementalDetokenizer, StripsAllSpacesOfTheFirstTokenForMetaspace) {
  const auto tokenizer = MakeJsonTokenizer(
      R"({"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"},
          "model":{"type":"BPE","merges":[],"vocab":{"▁":0,"▁▁a":1,"b":2}}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Stream(**tokenizer, {1, 1, 2}), "a  ab");
  EXPECT_EQ(Stream(**tokenizer, {0, 1}), "  a");
  EXPECT_EQ(Stream(**tokenizer, {1}, {.follows_prompt = true}), "  a");
}

TEST(IncrementalDetokenizer, StreamsEqualTheWholeListForRandomIds) {
  const auto prose = testing::ProseTokenizer();
  const auto marks = SpaceMarkTokenizer({"▁", "▁leading", "▁x", "é", "▁▁"});
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    for (const Tokenizer* tokenizer : {prose.get(), marks.get()}) {
      std::vector<int32_t> ids(random() % 20);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % tokenizer->vocab_size());
      const DecodeOptions options{.skip_special = round % 2 == 0, .follows_prompt = round % 3 == 0};
      ASSERT_EQ(Stream(*tokenizer, ids, options), tokenizer->Decode(ids, options));
      ASSERT_EQ(unicode::FindInvalidUtf8(tokenizer->Decode(ids, options)), absl::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace baton
