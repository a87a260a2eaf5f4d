// Finds the matches of a model's split pattern, or of a plain string, in a text. Patterns are
// Oniguruma's, run by PCRE2 (see oniguruma_pattern.h). SplitPattern is immutable and thread-safe;
// a Matcher is the scratch space of one call at a time.
#ifndef BATON_ENGINE_TOKENIZER_SPLIT_PATTERN_H_
#define BATON_ENGINE_TOKENIZER_SPLIT_PATTERN_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// [begin, end) in bytes.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// PCRE2's match data, limits and stack, made on first use and kept for the following matches.
// Thread-compatible.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

 private:
  friend class SplitPattern;
  struct State;
  std::unique_ptr<State> state_;
};

class SplitPattern {
 public:
  // ERRORS: FailedPrecondition for syntax that is not supported, InvalidArgument for a pattern that
  // does not compile or is longer than 64 KiB.
  static absl::StatusOr<SplitPattern> Compile(absl::string_view oniguruma_pattern);
  // Matches `literal` itself. ERRORS: InvalidArgument when empty or longer than 64 KiB.
  static absl::StatusOr<SplitPattern> Literal(absl::string_view literal);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Appends the matches in `text`, from left to right, not overlapping; an empty match does not
  // directly follow another match. REQUIRES: `text` is valid UTF-8. ERRORS: ResourceExhausted when
  // PCRE2 gives up at its match, depth, heap or stack limit.
  absl::Status FindAll(absl::string_view text, Matcher* matcher, std::vector<TextSpan>* out) const;

 private:
  struct Code;
  SplitPattern();

  std::unique_ptr<Code> code_;  // null for a literal
  std::string literal_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_SPLIT_PATTERN_H_
