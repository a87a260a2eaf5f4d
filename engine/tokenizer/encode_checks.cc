#include "engine/tokenizer/encode_checks.h"

#include "absl/strings/str_cat.h"
#include "engine/tokenizer/unicode.h"

namespace baton {

absl::Status CheckText(absl::string_view text) {
  if (text.size() > kEncodeBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, at most ", kEncodeBytesMax));
  }
  const size_t invalid = unicode::FindInvalidUtf8(text);
  if (invalid != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", invalid));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenCount(size_t tokens, size_t tokens_max) {
  if (tokens <= tokens_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("text has more than ", tokens_max, " tokens"));
}

}  // namespace baton
