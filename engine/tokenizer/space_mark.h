// "▁" (U+2581), in which SentencePiece vocabularies write a space. A text that is merged as a whole
// can be cut before each run of marks without changing the result, if no token of the vocabulary
// has a mark behind another character: no merge then crosses the cut. Short words are merged
// faster, and a limit on tokens is met early. Thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_SPACE_MARK_H_
#define BATON_ENGINE_TOKENIZER_SPACE_MARK_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace baton {

inline constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";

// Whether `token` has a mark behind a character that is none.
bool CrossesSpaceMark(absl::string_view token);
// Replaces `words` by the pieces of `text`, none empty.
void CutBeforeSpaceMarks(absl::string_view text, std::vector<absl::string_view>* words);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_SPACE_MARK_H_
