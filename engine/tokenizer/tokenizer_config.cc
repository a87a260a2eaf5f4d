#include "engine/tokenizer/tokenizer_config.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/token_table.h"

namespace baton {
namespace {

constexpr char kFileName[] = "tokenizer_config.json";

// A token is written as its content, or as an object with a content.
absl::StatusOr<std::optional<std::string>> ReadTokenName(JsonObjectReader* reader,
                                                         absl::string_view key) {
  const JsonValue* value = reader->Find(key);
  if (value == nullptr || value->as_object() == nullptr) return reader->OptionalString(key);
  ASSIGN_OR_RETURN(JsonObjectReader token,
                   JsonObjectReader::Open(*value, absl::StrCat(kFileName, ".", key)));
  return token.OptionalString("content");
}

}  // namespace

absl::StatusOr<AddedToken> ReadAddedTokenJson(JsonObjectReader* reader) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, reader->String("content"));
  ASSIGN_OR_RETURN(token.single_word, reader->Bool("single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, reader->Bool("lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, reader->Bool("rstrip", false));
  ASSIGN_OR_RETURN(token.special, reader->Bool("special", false));
  ASSIGN_OR_RETURN(token.normalized, reader->Bool("normalized", !token.special));
  return token;
}

absl::StatusOr<TokenizerConfig> TokenizerConfig::Parse(absl::string_view json) {
  TokenizerConfig config;
  if (json.empty()) return config;
  ASSIGN_OR_RETURN(const JsonValue root, ParseJson(json, kFileName));
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(root, kFileName));
  ASSIGN_OR_RETURN(config.bos_token, ReadTokenName(&reader, "bos_token"));
  ASSIGN_OR_RETURN(config.eos_token, ReadTokenName(&reader, "eos_token"));
  ASSIGN_OR_RETURN(config.add_bos_token, reader.OptionalBool("add_bos_token"));
  ASSIGN_OR_RETURN(config.add_eos_token, reader.OptionalBool("add_eos_token"));
  const JsonValue* added = reader.Find("added_tokens_decoder");
  if (added == nullptr) return config;
  if (added->as_object() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(kFileName, ".added_tokens_decoder: not an object"));
  }
  for (const auto& [id_text, value] : *added->as_object()) {
    const std::string path = absl::StrCat(kFileName, ".added_tokens_decoder");
    int32_t id = 0;
    if (!absl::SimpleAtoi(id_text, &id) || id < 0 || id > kTokenIdMax) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a key is not a token id"));
    }
    ASSIGN_OR_RETURN(JsonObjectReader token_reader,
                     JsonObjectReader::Open(value, absl::StrCat(path, ".", id)));
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedTokenJson(&token_reader));
    RETURN_IF_ERROR(token_reader.Done());
    token.id = id;
    config.added_tokens.push_back(std::move(token));
  }
  return config;
}

absl::Status ApplyAddFlags(const TokenizerConfig& config, std::optional<int32_t> bos_id,
                           std::optional<int32_t> eos_id, std::vector<int32_t>* prefix_ids,
                           std::vector<int32_t>* suffix_ids) {
  if (config.add_bos_token == true) {
    if (!bos_id.has_value()) {
      return absl::FailedPreconditionError("add_bos_token is true, but there is no bos_token");
    }
    if (prefix_ids->empty() || prefix_ids->front() != *bos_id) {
      prefix_ids->insert(prefix_ids->begin(), *bos_id);
    }
  } else if (config.add_bos_token == false && bos_id.has_value() && !prefix_ids->empty() &&
             prefix_ids->front() == *bos_id) {
    prefix_ids->erase(prefix_ids->begin());
  }
  if (config.add_eos_token == true) {
    if (!eos_id.has_value()) {
      return absl::FailedPreconditionError("add_eos_token is true, but there is no eos_token");
    }
    if (suffix_ids->empty() || suffix_ids->back() != *eos_id) suffix_ids->push_back(*eos_id);
  } else if (config.add_eos_token == false && eos_id.has_value() && !suffix_ids->empty() &&
             suffix_ids->back() == *eos_id) {
    suffix_ids->pop_back();
  }
  return absl::OkStatus();
}

}  // namespace baton
