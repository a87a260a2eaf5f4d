// JSON of untrusted files, parsed within limits. nlohmann's own parser keeps the last of duplicate
// keys and has no limit; here duplicates, deep nesting and huge documents are refused.
//
// Thread-safe: pure functions. Only .cc files include nlohmann/json.hpp (slow to compile).
#ifndef BATON_ENGINE_WEIGHTS_STRICT_JSON_H_
#define BATON_ENGINE_WEIGHTS_STRICT_JSON_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace baton {

struct JsonLimits {
  int depth_max = 16;
  // Objects, arrays and scalars together.
  size_t values_max = size_t{1} << 16;
  size_t token_bytes_max = size_t{1} << 20;
};

// The document, whose root must be an object. `file` is named in errors.
// ERRORS: InvalidArgument: not JSON, not UTF-8, root no object, a key twice in one object, deeper
// or larger than the limits.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file,
                                               const JsonLimits& limits);

// To be asked before the parser sees the text. It holds a token (a string, a number, the space
// between two tokens) several times over while it reads it, so a document that is one token would
// take a multiple of its size; and it takes a NUL byte for the end of the text, whatever follows.
// ERRORS: InvalidArgument: a token longer than token_bytes_max, or a NUL.
absl::Status CheckJsonTokens(absl::string_view json, size_t token_bytes_max);

// `text` in quotes for an error message: control and non-ASCII bytes escaped, cut after 128 bytes.
std::string QuoteForError(absl::string_view text);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_STRICT_JSON_H_
