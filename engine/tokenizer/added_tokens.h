// Tokens that are found in a text before it is normalized, split and merged: control tokens and
// others added to the vocabulary. Behaves as the added vocabulary of Hugging Face's `tokenizers`:
// leftmost-longest matches that do not overlap. Immutable, thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_ADDED_TOKENS_H_
#define BATON_ENGINE_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/split_pattern.h"

namespace baton {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only between characters that are not of words
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalized text, in normalized form
  bool special = false;
};

class AddedTokenMatcher {
 public:
  struct Pattern {
    AddedToken token;
    std::string text;  // what is looked for; valid UTF-8, not empty
  };
  struct Segment {
    TextSpan span;
    int32_t id = -1;  // -1: plain text
  };

  AddedTokenMatcher() = default;
  // ERRORS: InvalidArgument for an empty text, one that is there twice, one of more than 512 bytes
  // (the search is linear in the longest), or more than 4 MiB in all.
  static absl::StatusOr<AddedTokenMatcher> Build(std::vector<Pattern> patterns);

  bool empty() const { return patterns_.empty(); }
  // Covers `text` with segments; none for an empty text. Special tokens count only with
  // `parse_special`. REQUIRES: `text` is valid UTF-8.
  std::vector<Segment> Split(absl::string_view text, bool parse_special) const;

 private:
  absl::Status Insert(const std::string& text, int32_t pattern);
  // The longest pattern at the front of `text`, or -1.
  int32_t LongestAt(absl::string_view text) const;

  std::vector<Pattern> patterns_;
  // A trie over bytes: (node, byte) -> node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> pattern_at_node_;  // -1: none ends here
  std::array<bool, 256> starts_{};
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_ADDED_TOKENS_H_
