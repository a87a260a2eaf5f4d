// The part of tokenizer_config.json that a tokenizer needs. Plain data.
#ifndef BATON_ENGINE_TOKENIZER_TOKENIZER_CONFIG_H_
#define BATON_ENGINE_TOKENIZER_TOKENIZER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/json_value.h"

namespace baton {

struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // Absent: the tokenizer's own file decides.
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  // added_tokens_decoder, in id order of the file; read for tokenizer.model only.
  std::vector<AddedToken> added_tokens;

  // An empty text is an empty configuration. ERRORS: InvalidArgument when malformed.
  static absl::StatusOr<TokenizerConfig> Parse(absl::string_view json);
};

// content, single_word, lstrip, rstrip, normalized, special: as tokenizer.json and
// tokenizer_config.json write an added token. `id` is not read here.
absl::StatusOr<AddedToken> ReadAddedTokenJson(JsonObjectReader* reader);

// Applies add_bos_token and add_eos_token to what the tokenizer's file puts round a text. ERRORS:
// FailedPrecondition when BOS or EOS is to be added and there is no such token.
absl::Status ApplyAddFlags(const TokenizerConfig& config, std::optional<int32_t> bos_id,
                           std::optional<int32_t> eos_id, std::vector<int32_t>* prefix_ids,
                           std::vector<int32_t>* suffix_ids);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKENIZER_CONFIG_H_
