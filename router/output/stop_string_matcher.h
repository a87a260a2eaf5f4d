// Finds stop strings in text that arrives in pieces, wherever the borders of the pieces fall.
//
// The first string to become complete wins, byte by byte; of several that become complete with the
// same byte, the longest. That depends on the text only, never on how it was cut, so a stream and a
// unary call end at the same place. Text is held back only while it may still be the beginning of a
// stop string.
//
// One Knuth-Morris-Pratt automaton per string: constant work per byte and string. Strings are valid
// UTF-8, so held back text begins at a character's border: what is passed on is valid UTF-8
// whenever the pieces are.
//
// Thread-compatible: owned by one request.
#ifndef BATON_ROUTER_OUTPUT_STOP_STRING_MATCHER_H_
#define BATON_ROUTER_OUTPUT_STOP_STRING_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::router {

class StopStringMatcher {
 public:
  // REQUIRES: strings are not empty and shorter than 64 KiB. With `include_match` the text ends
  // with the stop string instead of before it.
  StopStringMatcher(const std::vector<std::string>& strings, bool include_match);

  // Appends to `out` what has become certain. True when a stop string is complete: `out` has then
  // got everything that belongs to the text, and the rest of `piece` is dropped.
  // REQUIRES: no match yet.
  bool Push(absl::string_view piece, std::string* out);

  // The text ends here without a match: appends what was held back.
  void Flush(std::string* out);

  bool matched() const { return match_ >= 0; }
  // Index of the string that matched. REQUIRES: matched().
  size_t match_index() const { return static_cast<size_t>(match_); }
  size_t held_bytes() const { return held_.size(); }

 private:
  struct Automaton {
    std::string pattern;
    // failure[i]: length of the longest proper prefix of pattern[0, i] that is also its suffix.
    std::vector<uint16_t> failure;
    // Bytes of `pattern` that the text ends with.
    size_t state = 0;

    // True when the pattern is complete.
    bool Step(char byte);
  };

  std::vector<Automaton> automata_;
  const bool include_match_;
  int match_ = -1;
  // The longest tail of the text that begins a stop string.
  std::string held_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_OUTPUT_STOP_STRING_MATCHER_H_
