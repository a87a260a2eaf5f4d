#include "engine/tokenizer/tokenizer_testing.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/tokenizer/byte_level.h"

namespace baton::testing {
namespace {

using Ranks = absl::flat_hash_map<std::string, int>;

// Merges the bytes of `token` by rank until two parts are left.
std::pair<std::string, std::string> LastParts(const Ranks& ranks, const std::string& token) {
  std::vector<std::string> parts;
  for (const char c : token) parts.emplace_back(1, c);
  while (parts.size() > 2) {
    size_t best = 0;
    int best_rank = INT32_MAX;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find(parts[i] + parts[i + 1]);
      if (it != ranks.end() && it->second < best_rank) {
        best = i;
        best_rank = it->second;
      }
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + best + 1);
  }
  return {parts[0], parts[1]};
}

}  // namespace

std::string SharedDataPath(absl::string_view relative) {
  const char* root = std::getenv("BATON_SHARED_DATA");
  return absl::StrCat(root != nullptr ? root : "../shared/data", "/", relative);
}

std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeJsonTokenizer(std::string json,
                                                                   std::string config) {
  TokenizerFiles files;
  files.tokenizer_json = std::move(json);
  files.tokenizer_config_json = std::move(config);
  return Tokenizer::Create(files);
}

std::unique_ptr<const Tokenizer> ProseTokenizer() {
  const std::string folder = "models/prose-1m-draft/";
  auto tokenizer = MakeJsonTokenizer(ReadFileOrEmpty(folder + "tokenizer.json"),
                                     ReadFileOrEmpty(folder + "tokenizer_config.json"));
  if (!tokenizer.ok()) {
    ADD_FAILURE() << folder << ": " << tokenizer.status();
    std::abort();
  }
  return *std::move(tokenizer);
}

std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, absl::string_view text) {
  EncodeOptions options;
  options.add_special_tokens = false;
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

std::vector<int32_t> IdsOf(const JsonValue& array) {
  std::vector<int32_t> ids;
  if (array.as_array() == nullptr) {
    ADD_FAILURE() << "not an array";
    return ids;
  }
  for (const JsonValue& id : *array.as_array()) {
    EXPECT_NE(id.as_int(), nullptr);
    ids.push_back(id.as_int() == nullptr ? -1 : static_cast<int32_t>(*id.as_int()));
  }
  return ids;
}

const JsonValue& Member(const JsonValue& object, absl::string_view key) {
  static const JsonValue kNull;
  if (object.as_object() != nullptr) {
    for (const auto& [name, value] : *object.as_object()) {
      if (name == key) return value;
    }
  }
  ADD_FAILURE() << "no member " << key;
  return kNull;
}

const std::string& Text(const JsonValue& object, absl::string_view key) {
  static const std::string kEmpty;
  const std::string* text = Member(object, key).as_string();
  EXPECT_NE(text, nullptr) << key;
  return text == nullptr ? kEmpty : *text;
}

double ThreadCpuSeconds() {
  timespec now{};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string JsonQuote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Qwen2JsonFromTiktoken(absl::string_view tiktoken) {
  Ranks ranks;
  std::map<int, std::string> tokens;
  for (const absl::string_view line : absl::StrSplit(tiktoken, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(line, ' ');
    std::string token;
    int rank = 0;
    if (!absl::Base64Unescape(fields.first, &token) || !absl::SimpleAtoi(fields.second, &rank)) {
      ADD_FAILURE() << "not a .tiktoken file";
      return "";
    }
    ranks[token] = rank;
    tokens[rank] = token;
  }
  std::string vocab, merges;
  for (const auto& [rank, token] : tokens) {
    absl::StrAppend(&vocab, vocab.empty() ? "" : ",", JsonQuote(byte_level::Encode(token)), ":",
                    rank);
    if (token.size() < 2) continue;
    const auto [left, right] = LastParts(ranks, token);
    absl::StrAppend(&merges, merges.empty() ? "" : ",", "[", JsonQuote(byte_level::Encode(left)),
                    ",", JsonQuote(byte_level::Encode(right)), "]");
  }
  return absl::StrCat(
      R"json({"version":"1.0","added_tokens":[{"id":)json", tokens.size(),
      R"json(,"content":"<|endoftext|>","special":true,"normalized":false}],)json",
      R"json("normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)json",
      R"json({"type":"Split","behavior":"Isolated","invert":false,"pattern":{"Regex":)json",
      JsonQuote(R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)re"
                R"re( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"),
      R"json(}},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)json",
      R"json("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)json", vocab,
      R"json(},"merges":[)json", merges, "]}}");
}

}  // namespace baton::testing
