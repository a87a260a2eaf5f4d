#include "router/output/stop_string_matcher.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::router {

StopStringMatcher::StopStringMatcher(const std::vector<std::string>& strings, bool include_match)
    : include_match_(include_match) {
  automata_.reserve(strings.size());
  for (const std::string& pattern : strings) {
    CHECK(!pattern.empty() && pattern.size() < (1u << 16)) << "stop string of " << pattern.size();
    Automaton automaton{.pattern = pattern, .failure = std::vector<uint16_t>(pattern.size(), 0)};
    size_t length = 0;
    for (size_t i = 1; i < pattern.size(); ++i) {
      while (length > 0 && pattern[i] != pattern[length]) length = automaton.failure[length - 1];
      if (pattern[i] == pattern[length]) ++length;
      automaton.failure[i] = static_cast<uint16_t>(length);
    }
    automata_.push_back(std::move(automaton));
  }
}

bool StopStringMatcher::Automaton::Step(char byte) {
  while (state > 0 && pattern[state] != byte) state = failure[state - 1];
  if (pattern[state] == byte) ++state;
  // No state reset is needed after a match: the first one ends the text.
  return state == pattern.size();
}

bool StopStringMatcher::Push(absl::string_view piece, std::string* out) {
  CHECK(!matched()) << "text after a stop string";
  if (automata_.empty()) {
    out->append(piece.data(), piece.size());
    return false;
  }
  size_t match_bytes = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    for (size_t k = 0; k < automata_.size(); ++k) {
      if (automata_[k].Step(piece[i]) && automata_[k].pattern.size() > match_bytes) {
        match_ = static_cast<int>(k);
        match_bytes = automata_[k].pattern.size();
      }
    }
    if (matched()) {
      held_.append(piece.data(), i + 1);
      out->append(held_, 0, include_match_ ? held_.size() : held_.size() - match_bytes);
      held_.clear();
      return true;
    }
  }
  held_.append(piece.data(), piece.size());
  size_t keep = 0;
  for (const Automaton& automaton : automata_) keep = std::max(keep, automaton.state);
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStringMatcher::Flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

}  // namespace baton::router
