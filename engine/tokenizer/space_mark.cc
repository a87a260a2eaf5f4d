#include "engine/tokenizer/space_mark.h"

#include <cstddef>

namespace baton {

bool CrossesSpaceMark(absl::string_view token) {
  size_t marks_end = 0;  // where the last run of marks ends
  for (size_t at = token.find(kSpaceMark); at != absl::string_view::npos;
       at = token.find(kSpaceMark, marks_end)) {
    if (at != marks_end) return true;
    marks_end = at + kSpaceMark.size();
  }
  return false;
}

void CutBeforeSpaceMarks(absl::string_view text, std::vector<absl::string_view>* words) {
  words->clear();
  if (text.empty()) return;
  size_t begin = 0;
  size_t marks_end = 0;
  for (size_t at = text.find(kSpaceMark); at != absl::string_view::npos;
       at = text.find(kSpaceMark, marks_end)) {
    if (at != marks_end) {
      words->push_back(text.substr(begin, at - begin));
      begin = at;
    }
    marks_end = at + kSpaceMark.size();
  }
  words->push_back(text.substr(begin));
}

}  // namespace baton
