#include "engine/tokenizer/oniguruma_pattern.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/unicode_tables.h"

namespace baton {
namespace {

// The White_Space characters, as members of a set. (PCRE2's \s has U+180E as well.)
constexpr char kSpaceMembers[] =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
constexpr char kHexDigitMembers[] = "0-9a-fA-F";

std::string RangeMembers(char32_t first, char32_t last) {
  if (first == last) return absl::StrFormat("\\x{%X}", static_cast<unsigned>(first));
  return absl::StrFormat("\\x{%X}-\\x{%X}", static_cast<unsigned>(first),
                         static_cast<unsigned>(last));
}

// Members for the characters of `category` ("L" or "Lu") that PCRE2 does not know yet.
std::string NewerMembers(absl::string_view category) {
  std::string out;
  char32_t first = 1;
  char32_t last = 0;  // an empty range
  for (const unicode::CategoryRange& range : unicode::CategoriesSinceUnicode14()) {
    if (!absl::StartsWith(absl::string_view(range.category, 2), category)) continue;
    if (first <= last && last + 1 == range.first) {
      last = range.last;
      continue;
    }
    if (first <= last) out += RangeMembers(first, last);
    first = range.first;
    last = range.last;
  }
  if (first <= last) out += RangeMembers(first, last);
  return out;
}

std::string CategoryMembers(absl::string_view category) {
  return absl::StrCat("\\p{", category, "}", NewerMembers(category));
}

// Oniguruma's word: letters, marks, letter and decimal numbers, connectors, Other_Alphabetic, and
// the superscript digits and fractions of Latin-1.
std::string WordMembers() {
  return absl::StrCat("\\p{Alphabetic}", CategoryMembers("L"), CategoryMembers("M"),
                      CategoryMembers("Nd"), CategoryMembers("Nl"), CategoryMembers("Pc"),
                      "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}");
}

// The members of \p{name}; nothing for a name that is not supported.
std::optional<std::string> PropertyMembers(absl::string_view name) {
  constexpr absl::string_view kCategories[] = {
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
      "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
  constexpr absl::string_view kScripts[] = {"Hiragana", "Katakana",  "Hangul", "Latin",
                                            "Greek",    "Cyrillic",  "Arabic", "Hebrew",
                                            "Thai",     "Devanagari"};
  constexpr absl::string_view kLongNames[][2] = {{"Letter", "L"}, {"Mark", "M"},
                                                 {"Number", "N"}, {"Punctuation", "P"},
                                                 {"Symbol", "S"}, {"Separator", "Z"}};
  for (const auto& long_name : kLongNames) {
    if (name == long_name[0]) name = long_name[1];
  }
  if (std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories)) {
    return CategoryMembers(name);
  }
  if (name == "Han") {
    std::string out = "\\p{sc:Han}";
    for (const auto& range : unicode::HanSinceUnicode14()) {
      out += RangeMembers(range.first, range.last);
    }
    return out;
  }
  if (std::find(std::begin(kScripts), std::end(kScripts), name) != std::end(kScripts)) {
    return absl::StrCat("\\p{sc:", name, "}");
  }
  return std::nullopt;
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) RETURN_IF_ERROR(Next());
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return pos_ >= in_.size(); }
  char Peek(size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }
  absl::Status Unsupported(absl::string_view what) const {
    return absl::FailedPreconditionError(
        absl::StrCat("split pattern: ", what, " is not supported (at byte ", pos_, ")"));
  }
  absl::Status Truncated() const {
    return absl::InvalidArgumentError("split pattern ends too early");
  }

  // Marks where the thing that a quantifier would repeat begins in the output.
  void StartAtom() { atom_start_ = out_.size(); }
  void AddSet(absl::string_view members, bool negated) {
    StartAtom();
    absl::StrAppend(&out_, negated ? "[^" : "[", members, "]");
  }

  absl::Status Next() {
    const char c = Peek();
    switch (c) {
      case '\\':
        return Escape();
      case '[':
        return Set();
      case '(':
        return Group();
      case '{':
        return Interval();
      case ')':
        ++pos_;
        out_ += ')';
        if (!group_starts_.empty()) {
          atom_start_ = group_starts_.back();
          group_starts_.pop_back();
        }
        return absl::OkStatus();
      case '^':
        ++pos_;
        StartAtom();
        out_ += "(?m:^)";
        return absl::OkStatus();
      case '$':
        ++pos_;
        StartAtom();
        out_ += "(?m:$)";
        return absl::OkStatus();
      case '*':
      case '+':
      case '?':
        ++pos_;
        out_ += c;
        return absl::OkStatus();
      default:
        break;
    }
    StartAtom();
    const size_t bytes = unicode::DecodeFront(in_.substr(pos_)).bytes;
    absl::StrAppend(&out_, in_.substr(pos_, bytes));
    pos_ += bytes;
    return absl::OkStatus();
  }

  absl::Status Group() {
    const size_t start = out_.size();
    ++pos_;
    if (Peek() != '?') {
      group_starts_.push_back(start);
      out_ += "(?:";  // captures have no use here
      return absl::OkStatus();
    }
    constexpr absl::string_view kPlain[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?-i:"};
    for (const absl::string_view prefix : kPlain) {
      if (!absl::StartsWith(in_.substr(pos_), prefix)) continue;
      group_starts_.push_back(start);
      absl::StrAppend(&out_, "(", prefix);
      pos_ += prefix.size();
      return absl::OkStatus();
    }
    if (absl::StartsWith(in_.substr(pos_), "?m:")) {  // Ruby's m: the dot matches newlines
      group_starts_.push_back(start);
      out_ += "(?s:";
      pos_ += 3;
      return absl::OkStatus();
    }
    // In the middle, (?i) has another reach over alternatives than in PCRE2.
    if (absl::StartsWith(in_.substr(pos_), "?i)") && pos_ == 1) {
      out_ += "(?i)";
      pos_ += 3;
      return absl::OkStatus();
    }
    return Unsupported("this kind of group");
  }

  // {n}, {n,}, {,m}, {n,m}; anything else in braces is plain text to both engines.
  absl::Status Interval() {
    size_t end = pos_ + 1;
    std::string low, high;
    bool comma = false;
    for (; end < in_.size() && in_[end] != '}'; ++end) {
      if (absl::ascii_isdigit(in_[end])) {
        (comma ? high : low) += in_[end];
      } else if (in_[end] == ',' && !comma) {
        comma = true;
      } else {
        break;
      }
    }
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) {
      StartAtom();
      out_ += "\\{";
      ++pos_;
      return absl::OkStatus();
    }
    pos_ = end + 1;
    absl::StrAppend(&out_, "{", low.empty() ? "0" : low, comma ? "," : "", high, "}");
    if (Peek() == '?' && !comma) return Unsupported("{n}?");
    if (Peek() == '+') {
      // Not possessive in Ruby's syntax: the interval itself is repeated.
      out_.insert(atom_start_, "(?:");
      out_ += ')';
    }
    return absl::OkStatus();
  }

  // \p{Name}, \p{^Name} and \P{Name}; pos_ is at p or P.
  absl::Status ReadProperty(std::string* members, bool* negated) {
    *negated = Peek() == 'P';
    ++pos_;
    if (Peek() != '{') return Unsupported("a property without braces");
    const size_t end = in_.find('}', pos_);
    if (end == absl::string_view::npos) return Truncated();
    absl::string_view name = in_.substr(pos_ + 1, end - pos_ - 1);
    if (absl::ConsumePrefix(&name, "^")) *negated = !*negated;
    std::optional<std::string> found = PropertyMembers(name);
    if (!found.has_value()) return Unsupported("this \\p{...} property");
    pos_ = end + 1;
    *members = *std::move(found);
    return absl::OkStatus();
  }

  // \xHH, \x{H...}, \uHHHH; pos_ is at x or u.
  absl::Status ReadCodePoint(std::string* out) {
    const bool four_digits = Peek() == 'u';
    ++pos_;
    std::string digits;
    if (!four_digits && Peek() == '{') {
      ++pos_;
      while (absl::ascii_isxdigit(Peek())) digits += in_[pos_++];
      if (Peek() != '}') return Unsupported("this \\x escape");
      ++pos_;
    } else {
      const size_t digits_max = four_digits ? 4 : 2;
      while (digits.size() < digits_max && absl::ascii_isxdigit(Peek())) digits += in_[pos_++];
      if (four_digits && digits.size() != 4) return Unsupported("this \\u escape");
      // Two digits mean a byte, not a character, to Oniguruma.
      if (!four_digits && digits.size() == 2 && digits[0] >= '8') {
        return Unsupported("\\x80 and above without braces");
      }
    }
    if (digits.empty() || digits.size() > 6) return Unsupported("this \\x escape");
    *out = absl::StrCat("\\x{", digits, "}");
    return absl::OkStatus();
  }

  // What an escape stands for, inside and outside of sets. pos_ is after the backslash.
  struct Meaning {
    bool is_set = false;
    bool negated = false;
    std::string text;  // members of a set, or one character
  };
  absl::StatusOr<Meaning> ReadEscape() {
    const char c = Peek();
    Meaning meaning;
    const auto set = [&](std::string members, bool negated) {
      ++pos_;
      meaning = {true, negated, std::move(members)};
    };
    switch (c) {
      case 's':
      case 'S':
        set(kSpaceMembers, c == 'S');
        return meaning;
      case 'd':
      case 'D':
        set(CategoryMembers("Nd"), c == 'D');
        return meaning;
      case 'w':
      case 'W':
        set(WordMembers(), c == 'W');
        return meaning;
      case 'h':
      case 'H':
        set(kHexDigitMembers, c == 'H');
        return meaning;
      case 'p':
      case 'P':
        meaning.is_set = true;
        RETURN_IF_ERROR(ReadProperty(&meaning.text, &meaning.negated));
        return meaning;
      case 'x':
      case 'u':
        RETURN_IF_ERROR(ReadCodePoint(&meaning.text));
        return meaning;
      case 'v':
        ++pos_;
        meaning.text = "\\x{0B}";
        return meaning;
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        ++pos_;
        meaning.text = {'\\', c};
        return meaning;
      default:
        break;
    }
    if (absl::ascii_isalnum(c)) return Unsupported("this escape");
    const size_t bytes = unicode::DecodeFront(in_.substr(pos_)).bytes;
    meaning.text =
        bytes == 1 ? absl::StrCat("\\", in_.substr(pos_, 1)) : std::string(in_.substr(pos_, bytes));
    pos_ += bytes;
    return meaning;
  }

  absl::Status Escape() {
    ++pos_;
    if (AtEnd()) return Truncated();
    const char c = Peek();
    if (c == 'A' || c == 'z' || c == 'Z') {
      ++pos_;
      StartAtom();
      absl::StrAppend(&out_, "\\", std::string(1, c));
      return absl::OkStatus();
    }
    if (c == 'b' || c == 'B') {
      ++pos_;
      StartAtom();
      const std::string word = absl::StrCat("[", WordMembers(), "]");
      if (c == 'b') {
        absl::StrAppend(&out_, "(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
      } else {
        absl::StrAppend(&out_, "(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
      }
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Meaning meaning, ReadEscape());
    if (meaning.is_set) {
      AddSet(meaning.text, meaning.negated);
    } else {
      StartAtom();
      out_ += meaning.text;
    }
    return absl::OkStatus();
  }

  absl::Status SetEscape() {
    ++pos_;
    if (AtEnd()) return Truncated();
    const char c = Peek();
    if (c == 'b') {
      ++pos_;
      out_ += "\\x{08}";
      return absl::OkStatus();
    }
    const size_t start = pos_;
    ASSIGN_OR_RETURN(const Meaning meaning, ReadEscape());
    if (!meaning.negated) {
      out_ += meaning.text;
      return absl::OkStatus();
    }
    if (c == 'S') {
      out_ += "\\S\\x{180E}";  // PCRE2's \s has one character more, so its \S has one less
      return absl::OkStatus();
    }
    pos_ = start;
    return Unsupported("a negated class inside a set");
  }

  absl::Status Set() {
    StartAtom();
    out_ += '[';
    ++pos_;
    if (Peek() == '^') {
      out_ += '^';
      ++pos_;
    }
    if (Peek() == ']') return Unsupported("a set that starts with ]");
    while (!AtEnd()) {
      const char c = Peek();
      if (c == ']') {
        ++pos_;
        out_ += ']';
        return absl::OkStatus();
      }
      if (c == '[') return Unsupported("a set inside a set");
      if (c == '&' && Peek(1) == '&') return Unsupported("&& in a set");
      if (c == '\\') {
        RETURN_IF_ERROR(SetEscape());
        continue;
      }
      const size_t bytes = unicode::DecodeFront(in_.substr(pos_)).bytes;
      absl::StrAppend(&out_, in_.substr(pos_, bytes));
      pos_ += bytes;
    }
    return Truncated();
  }

  const absl::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_start_ = 0;
  std::vector<size_t> group_starts_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaPattern(absl::string_view pattern) {
  return Translator(pattern).Run();
}

std::string EscapeForPattern(absl::string_view literal) {
  std::string out;
  for (const char c : literal) {
    // Letters and digits would become classes, bytes of longer characters must stay together.
    if (absl::ascii_ispunct(c)) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace baton
