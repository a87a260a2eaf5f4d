// The pre-tokenizer of a tokenizer.json: cuts a text into the words that are merged separately.
// Supported: ByteLevel, Split, Digits, Punctuation, Metaspace, WhitespaceSplit, Sequence.
// Immutable, thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
#define BATON_ENGINE_TOKENIZER_PRE_TOKENIZER_H_

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/split_pattern.h"

namespace baton {

// A text and its words: ascending, not overlapping, none empty.
struct PreTokens {
  std::string text;
  std::vector<TextSpan> words;
};

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  // Leaves a text in one piece.
  PreTokenizer() = default;
  // ERRORS: FailedPrecondition naming a component that is not supported; InvalidArgument when
  // malformed.
  static absl::StatusOr<PreTokenizer> FromJson(const JsonValue& value, const std::string& path);

  // When the last step is ByteLevel, its change of alphabet can be left to the model: the words are
  // then raw bytes. Otherwise they are UTF-8.
  bool ends_in_byte_level() const;

  // `at_text_start`: the text begins where the user's text begins (Metaspace's "first"). With
  // `keep_raw_bytes` (REQUIRES ends_in_byte_level()) the last change of alphabet is left out.
  // REQUIRES: `text` is valid UTF-8. ERRORS: those of SplitPattern::FindAll; InvalidArgument when
  // the text grows beyond 256 MiB.
  absl::StatusOr<PreTokens> Apply(std::string text, bool at_text_start, bool keep_raw_bytes,
                                  Matcher* matcher) const;

 private:
  struct Split {
    SplitPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct CharSplit {
    bool (*matches)(char32_t);
    SplitBehavior behavior;
  };
  struct PrefixSpace {};  // a space before every word that has none
  struct ByteAlphabet {};
  enum class PrependScheme { kFirst, kNever, kAlways };
  struct Metaspace {
    std::string replacement;
    PrependScheme scheme;
  };
  using Step = std::variant<Split, CharSplit, PrefixSpace, ByteAlphabet, Metaspace>;

  absl::Status AddFromJson(const JsonValue& value, const std::string& path);
  absl::Status AddByteLevel(JsonObjectReader* reader);
  absl::Status AddSplit(JsonObjectReader* reader);
  absl::Status AddMetaspace(JsonObjectReader* reader);
  static absl::Status ApplyMetaspace(const Metaspace& step, bool at_text_start, PreTokens* tokens);

  std::vector<Step> steps_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_PRE_TOKENIZER_H_
