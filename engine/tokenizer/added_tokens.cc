#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr size_t kPatternBytesMax = 512;
constexpr size_t kAllPatternsBytesMax = size_t{4} << 20;

uint64_t EdgeKey(uint32_t node, char byte) {
  return (uint64_t{node} << 8) | static_cast<unsigned char>(byte);
}

bool EndsInWord(absl::string_view text) {
  return !text.empty() && unicode::IsWordCharacter(unicode::DecodeBack(text).code_point);
}

bool StartsWithWord(absl::string_view text) {
  return !text.empty() && unicode::IsWordCharacter(unicode::DecodeFront(text).code_point);
}

size_t TrailingSpaceBytes(absl::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const unicode::DecodedChar c = unicode::DecodeBack(text);
    if (!unicode::IsWhitespace(c.code_point)) break;
    text.remove_suffix(c.bytes);
  }
  return size - text.size();
}

size_t LeadingSpaceBytes(absl::string_view text) {
  const size_t size = text.size();
  while (!text.empty()) {
    const unicode::DecodedChar c = unicode::DecodeFront(text);
    if (!unicode::IsWhitespace(c.code_point)) break;
    text.remove_prefix(c.bytes);
  }
  return size - text.size();
}

}  // namespace

absl::StatusOr<AddedTokenMatcher> AddedTokenMatcher::Build(std::vector<Pattern> patterns) {
  AddedTokenMatcher matcher;
  matcher.pattern_at_node_ = {-1};
  size_t bytes = 0;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string& text = patterns[i].text;
    bytes += text.size();
    if (text.empty() || text.size() > kPatternBytesMax || bytes > kAllPatternsBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added token with id ", patterns[i].token.id, ": its text has ", text.size(),
          " bytes; 1 to ", kPatternBytesMax, " are allowed, and 4 MiB for all added tokens"));
    }
    RETURN_IF_ERROR(matcher.Insert(text, static_cast<int32_t>(i)));
  }
  matcher.patterns_ = std::move(patterns);
  return matcher;
}

absl::Status AddedTokenMatcher::Insert(const std::string& text, int32_t pattern) {
  starts_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto [it, is_new] =
        edges_.try_emplace(EdgeKey(node, c), static_cast<uint32_t>(pattern_at_node_.size()));
    if (is_new) pattern_at_node_.push_back(-1);
    node = it->second;
  }
  if (pattern_at_node_[node] != -1) {
    return absl::InvalidArgumentError("two added tokens have the same text");
  }
  pattern_at_node_[node] = pattern;
  return absl::OkStatus();
}

int32_t AddedTokenMatcher::LongestAt(absl::string_view text) const {
  int32_t longest = -1;
  uint32_t node = 0;
  for (const char c : text) {
    const auto it = edges_.find(EdgeKey(node, c));
    if (it == edges_.end()) break;
    node = it->second;
    if (pattern_at_node_[node] != -1) longest = pattern_at_node_[node];
  }
  return longest;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::Split(absl::string_view text,
                                                                 bool parse_special) const {
  std::vector<Segment> segments;
  if (text.empty()) return segments;
  size_t done = 0;  // end of the last segment
  size_t at = 0;
  while (!patterns_.empty() && at < text.size()) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const int32_t found = LongestAt(text.substr(at));
    if (found == -1) {
      ++at;
      continue;
    }
    // A match that is turned down is still stepped over, as in the reference.
    const AddedToken& token = patterns_[found].token;
    size_t begin = at;
    size_t end = at + patterns_[found].text.size();
    at = end;
    if (token.special && !parse_special) continue;
    if (token.single_word &&
        (EndsInWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) {
      begin = std::max(begin - TrailingSpaceBytes(text.substr(0, begin)), done);
    }
    if (token.rstrip) end += LeadingSpaceBytes(text.substr(end));
    // White space taken along is not looked at again. (The reference does, and may fail on it.)
    at = end;
    if (done < begin) segments.push_back({{done, begin}, -1});
    segments.push_back({{begin, end}, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({{done, text.size()}, -1});
  return segments;
}

}  // namespace baton
