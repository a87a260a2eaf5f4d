// Goal: the ids and texts that public test suites expect for real vocabularies. Method: the shared
// test data ($BATON_SHARED_DATA, by default ../shared/data); skipped when it is not there. 20,000
// words with and without a space, and 10,000 random strings, are compared by
// tools/tokenizer_golden.py --check.
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_testing.h"

namespace baton {
namespace {

using testing::EncodePlain;
using testing::IdsOf;
using testing::Member;
using testing::ReadFileOrEmpty;
using testing::SharedDataPath;
using testing::Text;
using Ids = std::vector<int32_t>;

class TokenizerVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (ReadFileOrEmpty(SharedDataPath("PROVENANCE.md")).empty()) {
      GTEST_SKIP() << "no shared test data at " << SharedDataPath("") << " (set BATON_SHARED_DATA)";
    }
  }

  static std::unique_ptr<const Tokenizer> Create(const TokenizerFiles& files) {
    auto tokenizer = Tokenizer::Create(files);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? *std::move(tokenizer) : testing::ProseTokenizer();
  }
  static std::unique_ptr<const Tokenizer> FromJson(absl::string_view name) {
    TokenizerFiles files;
    files.tokenizer_json =
        ReadFileOrEmpty(SharedDataPath(absl::StrCat("tokenizers/hf-json/", name)));
    return Create(files);
  }
  static std::unique_ptr<const Tokenizer> FromModel(absl::string_view path) {
    TokenizerFiles files;
    files.tokenizer_model = ReadFileOrEmpty(SharedDataPath(absl::StrCat("tokenizers/", path)));
    return Create(files);
  }
  static std::unique_ptr<const Tokenizer> Qwen2() {
    TokenizerFiles files;
    files.tokenizer_json = testing::Qwen2JsonFromTiktoken(
        ReadFileOrEmpty(SharedDataPath("tokenizers/qwen/qwen.tiktoken")));
    return Create(files);
  }
  static JsonValue Expected(absl::string_view name) {
    const std::string path = SharedDataPath(absl::StrCat("tokenizers/expected/", name));
    auto value = ParseJson(ReadFileOrEmpty(path), name);
    EXPECT_TRUE(value.ok()) << value.status();
    return value.ok() ? *std::move(value) : JsonValue();
  }

  static void CheckText(const Tokenizer& tokenizer, const std::string& text, const Ids& want) {
    const auto ids = tokenizer.Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, want) << text;
  }

  // {"text": ..., "token_ids": [...]}
  static void CheckSwift(const Tokenizer& tokenizer, absl::string_view name) {
    const JsonValue expected = Expected(absl::StrCat("swift-transformers/", name));
    const Ids want = IdsOf(Member(expected, "token_ids"));
    CheckText(tokenizer, Text(expected, "text"), want);
    EXPECT_EQ(tokenizer.Decode(want, {.skip_special = false}), Text(expected, "decoded_text"));
  }

  // What `transformers` does with clean_up_tokenization_spaces, which Decode never does.
  static std::string CleanUp(const std::string& text) {
    return absl::StrReplaceAll(text, {{" .", "."},
                                      {" ?", "?"},
                                      {" !", "!"},
                                      {" ,", ","},
                                      {" ' ", "'"},
                                      {" n't", "n't"},
                                      {" 'm", "'m"},
                                      {" 's", "'s"},
                                      {" 've", "'ve"},
                                      {" 're", "'re"}});
  }

  // tokenizer_tests.json: lists of inputs by model. Some models' texts are cleaned up.
  static void CheckSwiftEdgeCases(const Tokenizer& tokenizer, absl::string_view model,
                                  bool cleaned_up) {
    const JsonValue expected = Expected("swift-transformers/tokenizer_tests.json");
    const JsonValue::Array* cases = Member(expected, model).as_array();
    ASSERT_NE(cases, nullptr);
    ASSERT_GE(cases->size(), 18u);
    for (const JsonValue& c : *cases) {
      const Ids want = IdsOf(Member(Member(c, "encoded"), "input_ids"));
      CheckText(tokenizer, Text(c, "input"), want);
      for (const bool skip_special : {false, true}) {
        const std::string text = tokenizer.Decode(want, {.skip_special = skip_special});
        EXPECT_EQ(cleaned_up ? CleanUp(text) : text,
                  Text(c, skip_special ? "decoded_without_special" : "decoded_with_special"));
      }
    }
  }

  // 83 texts in many scripts, with ids and decoded forms.
  static void CheckMultilingual(const Tokenizer& tokenizer, absl::string_view name) {
    const JsonValue inputs = Expected("multilingual83/inputs.json");
    const JsonValue expected = Expected(absl::StrCat("multilingual83/", name));
    const JsonValue::Array* entries = Member(expected, "entries").as_array();
    ASSERT_TRUE(entries != nullptr && inputs.as_array() != nullptr);
    ASSERT_EQ(entries->size(), 83u);
    for (size_t i = 0; i < entries->size(); ++i) {
      const JsonValue& entry = (*entries)[i];
      const JsonValue& input = (*inputs.as_array())[i];
      ASSERT_EQ(Text(input, "id"), Text(entry, "id"));
      CheckEntry(tokenizer, Text(input, "text"), entry);
    }
  }

  static void CheckMultilingualSmall(const Tokenizer& tokenizer, absl::string_view name) {
    const JsonValue inputs = Expected("multilingual-small/inputs.json");
    const JsonValue expected = Expected(absl::StrCat("multilingual-small/", name));
    const JsonValue::Array* texts = Member(inputs, "inputs").as_array();
    ASSERT_NE(texts, nullptr);
    ASSERT_GT(texts->size(), 10u);
    for (const JsonValue& input : *texts) {
      CheckEntry(tokenizer, Text(input, "text"),
                 Member(Member(expected, "entries"), Text(input, "id")));
    }
  }

  static void CheckEntry(const Tokenizer& tokenizer, const std::string& text,
                         const JsonValue& entry) {
    const Ids want = IdsOf(Member(entry, "input_ids"));
    CheckText(tokenizer, text, want);
    EXPECT_EQ(tokenizer.Decode(want, {.skip_special = false}), Text(entry, "decoded_with_special"));
    EXPECT_EQ(tokenizer.Decode(want), Text(entry, "decoded_skip_special"));
  }

  // llama.cpp's vectors: texts between separator lines, and a line of ids for each.
  static void CheckInpOut(const Tokenizer& tokenizer, absl::string_view name) {
    const std::string inputs =
        ReadFileOrEmpty(SharedDataPath(absl::StrCat("vocab-gguf/ggml-vocab-", name, ".gguf.inp")));
    const std::string outputs =
        ReadFileOrEmpty(SharedDataPath(absl::StrCat("vocab-gguf/ggml-vocab-", name, ".gguf.out")));
    std::vector<std::string> texts = absl::StrSplit(inputs, "\n__ggml_vocab_test__\n");
    const std::vector<std::string> lines = absl::StrSplit(outputs, '\n');
    ASSERT_GE(lines.size(), 46u);
    int checked = 0;
    for (size_t i = 0; i < texts.size() && i < lines.size(); ++i) {
      Ids want;
      for (const absl::string_view id : absl::StrSplit(lines[i], ' ', absl::SkipEmpty())) {
        want.push_back(0);
        ASSERT_TRUE(absl::SimpleAtoi(id, &want.back()));
      }
      if (texts[i].empty() && i + 1 == texts.size()) break;
      EXPECT_EQ(EncodePlain(tokenizer, texts[i]), want) << i << ": " << texts[i];
      ++checked;
    }
    EXPECT_GE(checked, 46);
  }
};

TEST_F(TokenizerVectors, Gpt2) {
  const auto tokenizer = FromJson("gpt2_tokenizer.json");
  CheckSwift(*tokenizer, "gpt2_encoded_tokens.json");
  CheckSwiftEdgeCases(*tokenizer, "distilgpt2", /*cleaned_up=*/true);
  CheckMultilingual(*tokenizer, "gpt2_multilingual.json");
  CheckMultilingualSmall(*tokenizer, "gpt2.json");
  CheckInpOut(*tokenizer, "gpt-2");
}

TEST_F(TokenizerVectors, Falcon) {
  const auto tokenizer = FromJson("falcon_tokenizer.json");
  CheckSwift(*tokenizer, "falcon_encoded.json");
  CheckSwiftEdgeCases(*tokenizer, "tiiuae/falcon-7b", /*cleaned_up=*/true);
  CheckInpOut(*tokenizer, "falcon");
}

TEST_F(TokenizerVectors, LlamaJson) {
  const auto tokenizer = FromJson("llama_tokenizer.json");
  CheckSwift(*tokenizer, "llama_encoded.json");
  CheckSwiftEdgeCases(*tokenizer, "coreml-projects/Llama-2-7b-chat-coreml", /*cleaned_up=*/false);
  CheckMultilingual(*tokenizer, "tinyllama_multilingual.json");
  CheckMultilingualSmall(*tokenizer, "tinyllama.json");
  CheckInpOut(*tokenizer, "llama-spm");
}

TEST_F(TokenizerVectors, LlamaModel) {
  const auto tokenizer = FromModel("llama2-spm/tokenizer.model");
  CheckSwift(*tokenizer, "llama_encoded.json");
  CheckMultilingual(*tokenizer, "tinyllama_multilingual.json");
  CheckMultilingualSmall(*tokenizer, "tinyllama.json");
  CheckInpOut(*tokenizer, "llama-spm");
}

TEST_F(TokenizerVectors, Qwen2) {
  const auto tokenizer = Qwen2();
  CheckMultilingual(*tokenizer, "qwen2_5_multilingual.json");
  CheckMultilingualSmall(*tokenizer, "qwen2.5.json");
  CheckInpOut(*tokenizer, "qwen2");
}

TEST_F(TokenizerVectors, MistralModelsKeepTheirControlAndUserDefinedPieces) {
  for (const char* name : {"tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2",
                           "mistral_instruct_tokenizer_240323.model.v3",
                           "mistral_instruct_tokenizer_241114.model.v7"}) {
    const auto tokenizer = FromModel(absl::StrCat("mistral-spm/", name));
    EXPECT_EQ(tokenizer->bos_id(), 1);
    const std::string text = "Hello  world, naïve 東京 🚀\n\tx </s> [INST]";
    EXPECT_EQ(tokenizer->Decode(EncodePlain(*tokenizer, text)), text) << name;
    if (tokenizer->vocab_size() == 32000) continue;
    ASSERT_TRUE(tokenizer->SpecialTokenId("[INST]").has_value()) << name;
    const auto ids = tokenizer->Encode("[INST] x", {.parse_special = true});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ((*ids)[1], *tokenizer->SpecialTokenId("[INST]"));
  }
}

TEST_F(TokenizerVectors, UnigramModelsAreRefusedByName) {
  for (const char* name : {"test_model.model", "test_ja_model.model"}) {
    TokenizerFiles files;
    files.tokenizer_model =
        ReadFileOrEmpty(SharedDataPath(absl::StrCat("tokenizers/sentencepiece/", name)));
    const absl::Status status = Tokenizer::Create(files).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find("UNIGRAM"), std::string::npos) << status;
  }
}

TEST_F(TokenizerVectors, JsonAndModelOfOneVocabularyAgree) {
  const auto json = FromJson("llama_tokenizer.json");
  const auto model = FromModel("llama2-spm/tokenizer.model");
  const std::string corpus =
      ReadFileOrEmpty(SharedDataPath("corpora/gutenberg/the-verdict.txt")).substr(0, 20'000);
  ASSERT_FALSE(corpus.empty());
  EXPECT_EQ(EncodePlain(*json, corpus), EncodePlain(*model, corpus));
  for (int32_t id = 0; id < 32000; ++id) {
    ASSERT_EQ(json->TokenBytes(id), model->TokenBytes(id)) << id;
    ASSERT_EQ(json->IsSpecial(id), model->IsSpecial(id)) << id;
  }
}

TEST_F(TokenizerVectors, LongRunsTakeLessThanASecond) {
  std::string kana;
  while (kana.size() < 1'000'000) kana += "\u3042";
  for (const auto& tokenizer :
       {FromJson("gpt2_tokenizer.json"), FromJson("falcon_tokenizer.json"),
        FromJson("llama_tokenizer.json"), FromModel("llama2-spm/tokenizer.model")}) {
    for (const std::string& text :
         {std::string(50'000, '_'), std::string(500'000, 'a'), std::string(1'000'000, '.'),
          std::string(1'000'000, ' '), kana}) {
      const double start = testing::ThreadCpuSeconds();
      const Ids ids = EncodePlain(*tokenizer, text);
      EXPECT_LT(testing::ThreadCpuSeconds() - start, testing::kOneSecond) << text.substr(0, 3);
      EXPECT_EQ(tokenizer->Decode(ids), text);
    }
  }
}

TEST_F(TokenizerVectors, NaughtyStringsRoundTrip) {
  const auto strings = ParseJson(ReadFileOrEmpty(SharedDataPath("adversarial/blns.json")), "blns");
  ASSERT_TRUE(strings.ok()) << strings.status();
  const auto gpt2 = FromJson("gpt2_tokenizer.json");
  const auto llama = FromModel("llama2-spm/tokenizer.model");
  for (const JsonValue& value : *strings->as_array()) {
    const std::string& text = *value.as_string();
    EXPECT_EQ(gpt2->Decode(EncodePlain(*gpt2, text)), text);
    // SentencePiece writes a space as ▁ and cannot tell a real one from it.
    if (text.find("▁") == std::string::npos) {
      EXPECT_EQ(llama->Decode(EncodePlain(*llama, text)), text);
    }
  }
}

TEST_F(TokenizerVectors, UTF8TestFileIsRefusedAtItsFirstInvalidByte) {
  const std::string text = ReadFileOrEmpty(SharedDataPath("adversarial/UTF-8-test.txt"));
  const auto tokenizer = testing::ProseTokenizer();
  const absl::Status status = tokenizer->Encode(text, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("at byte "), std::string::npos) << status;
}

}  // namespace
}  // namespace baton
