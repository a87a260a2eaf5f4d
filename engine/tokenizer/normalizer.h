// The normalizer of a tokenizer.json: what happens to a text before it is split. Supported: NFC,
// NFD, NFKC, NFKD, Prepend, Replace (string or pattern), Strip, Sequence. Immutable, thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_NORMALIZER_H_
#define BATON_ENGINE_TOKENIZER_NORMALIZER_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/split_pattern.h"
#include "engine/tokenizer/unicode.h"

namespace baton {

class Normalizer {
 public:
  // Does nothing.
  Normalizer() = default;
  // ERRORS: FailedPrecondition naming a component that is not supported; InvalidArgument when
  // malformed.
  static absl::StatusOr<Normalizer> FromJson(const JsonValue& value, const std::string& path);

  bool empty() const { return steps_.empty(); }
  // REQUIRES: `text` is valid UTF-8. ERRORS: those of SplitPattern::FindAll; InvalidArgument when
  // the text grows beyond 256 MiB.
  absl::StatusOr<std::string> Apply(absl::string_view text, Matcher* matcher) const;

 private:
  struct Form {
    unicode::NormalForm form;
  };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    SplitPattern pattern;
    std::string content;
  };
  struct Strip {
    bool left;
    bool right;
  };
  using Step = std::variant<Form, Prepend, Replace, Strip>;

  absl::Status AddFromJson(const JsonValue& value, const std::string& path);

  std::vector<Step> steps_;
};

// {"String": "..."} or {"Regex": "..."}, as Replace and Split write their pattern. ERRORS: as
// SplitPattern's factories, with the path.
absl::StatusOr<SplitPattern> ReadPatternJson(const JsonValue* value, const std::string& path);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_NORMALIZER_H_
