// JSON of untrusted files, parsed within limits. nlohmann's own parser keeps the last of duplicate
// keys and has no limit; here duplicates, deep nesting and huge documents are refused.
//
// Thread-safe: pure functions. Only .cc files include nlohmann/json.hpp (slow to compile).
#ifndef BATON_ENGINE_WEIGHTS_STRICT_JSON_H_
#define BATON_ENGINE_WEIGHTS_STRICT_JSON_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace baton {

struct JsonLimits {
  int depth_max = 16;
  // Objects, arrays and scalars together.
  size_t values_max = size_t{1} << 16;
};

// The document, whose root must be an object. `file` is named in errors.
// ERRORS: InvalidArgument: not JSON, not UTF-8, root no object, a key twice in one object, deeper
// or larger than the limits.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file,
                                               const JsonLimits& limits);

// `text` in quotes for an error message: control and non-ASCII bytes escaped, cut after 128 bytes.
std::string QuoteForError(absl::string_view text);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_STRICT_JSON_H_
