// Models' split patterns are written for Oniguruma (Ruby syntax, Unicode 16), the engine of Hugging
// Face's `tokenizers`. This rewrites one for PCRE2 (UTF and UCP mode, Unicode 14), so that it
// matches the same. What differs between the two and is rewritten: \s \d \w \h \v \b, \p{...}
// (characters since Unicode 14; \p{Han} without script extensions), ^ and $, (?m), {,n}, {n,m}+.
// What cannot be rewritten simply is refused, so that a pattern never quietly means something else:
// back references, named groups, set operations and nested sets, POSIX brackets, \W in a set,
// unknown properties.
//
// Source for the syntax: Oniguruma's doc/RE and its Ruby syntax flags; pcre2pattern(3).
#ifndef BATON_ENGINE_TOKENIZER_ONIGURUMA_PATTERN_H_
#define BATON_ENGINE_TOKENIZER_ONIGURUMA_PATTERN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// REQUIRES: `pattern` is valid UTF-8. ERRORS: FailedPrecondition naming what is not supported and
// where; InvalidArgument for a pattern that ends too early.
absl::StatusOr<std::string> TranslateOnigurumaPattern(absl::string_view pattern);

// `literal` so that it matches itself in a translated or an original pattern.
std::string EscapeForPattern(absl::string_view literal);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_ONIGURUMA_PATTERN_H_
