// The decoder of a tokenizer.json, as a rule for single tokens: what bytes a token adds, and what
// is taken off the front of a text. Supported: ByteLevel; Metaspace; Replace (string),
// ByteFallback, Fuse and Strip in the order in which they are used for SentencePiece vocabularies.
#ifndef BATON_ENGINE_TOKENIZER_TOKEN_DECODER_H_
#define BATON_ENGINE_TOKENIZER_TOKEN_DECODER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton {

// The byte of a token such as "<0x0A>"; nothing for any other token.
std::optional<char> ByteOfByteToken(absl::string_view token);

class TokenDecoder {
 public:
  // ERRORS: FailedPrecondition naming a component, or an order of components, that is not
  // supported; InvalidArgument when malformed.
  static absl::StatusOr<TokenDecoder> FromJson(const JsonValue& value, const std::string& path);

  // REQUIRES: `token` is valid UTF-8.
  std::string BytesOf(absl::string_view token) const;
  bool byte_level() const { return byte_level_; }
  LeadingSpaceRule leading_space() const { return leading_space_; }
  InvalidUtf8 invalid_utf8() const {
    return byte_fallback_ ? InvalidUtf8::kReplaceEachByte : InvalidUtf8::kReplaceMaximalSubpart;
  }

 private:
  absl::Status AddFromJson(const JsonValue& value, const std::string& path);
  absl::Status AddReplace(JsonObjectReader* reader);
  absl::Status AddMetaspace(JsonObjectReader* reader);
  absl::Status AddStrip(JsonObjectReader* reader);

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  bool stripped_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
  LeadingSpaceRule leading_space_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKEN_DECODER_H_
