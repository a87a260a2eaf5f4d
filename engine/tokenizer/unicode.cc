#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "common/base/check.h"
#include "engine/tokenizer/unicode_tables.h"

namespace baton::unicode {
namespace {

unsigned char ByteAt(absl::string_view s, size_t i) { return static_cast<unsigned char>(s[i]); }

// Bytes of the character that `lead` starts, and the range of its second byte; 0 bytes for a byte
// that starts nothing.
struct LeadInfo {
  size_t bytes;
  unsigned char second_min;
  unsigned char second_max;
};
LeadInfo LookUpLead(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// The category of Unicode 16, as two letters.
absl::string_view Category(char32_t c) {
  for (const CategoryRange& range : CategoriesSinceUnicode14()) {
    if (c < range.first) break;
    if (c <= range.last) return absl::string_view(range.category, 2);
  }
  return utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
}

// Sorts each run of combining marks by combining class, stably. utf8proc does the same by
// exchanging neighbours, which is quadratic: a text of a million marks would hold a thread for
// minutes.
void OrderCombiningMarks(std::vector<utf8proc_int32_t>* text) {
  const auto combining_class = [](utf8proc_int32_t c) -> uint64_t {
    return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
  };
  std::vector<uint64_t> run;  // class, position, code point: 8, 32 and 21 bits
  for (size_t i = 0; i < text->size(); ++i) {
    run.clear();
    for (size_t end = i; end < text->size(); ++end) {
      const auto c = static_cast<uint32_t>((*text)[end]);
      const uint64_t mark_class = combining_class((*text)[end]);
      if (mark_class == 0) break;
      run.push_back((mark_class << 53) | (uint64_t{end - i} << 21) | c);
    }
    std::sort(run.begin(), run.end());
    for (size_t k = 0; k < run.size(); ++k) {
      (*text)[i + k] = static_cast<utf8proc_int32_t>(run[k] & 0x1FFFFF);
    }
    i += run.size();  // the character behind the run is no mark
  }
}

bool AllBelow(absl::string_view s, unsigned char lead) {
  return std::all_of(s.begin(), s.end(),
                     [lead](char c) { return static_cast<unsigned char>(c) < lead; });
}

}  // namespace

size_t FindInvalidUtf8(absl::string_view s) {
  size_t i = 0;
  while (i < s.size()) {
    const unsigned char lead = ByteAt(s, i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const LeadInfo info = LookUpLead(lead);
    if (info.bytes == 0 || i + info.bytes > s.size()) return i;
    if (ByteAt(s, i + 1) < info.second_min || ByteAt(s, i + 1) > info.second_max) return i;
    for (size_t k = 2; k < info.bytes; ++k) {
      if ((ByteAt(s, i + k) & 0xC0) != 0x80) return i;
    }
    i += info.bytes;
  }
  return absl::string_view::npos;
}

DecodedChar DecodeFront(absl::string_view s) {
  const unsigned char lead = ByteAt(s, 0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = LookUpLead(lead).bytes;
  DCHECK(bytes >= 2 && bytes <= s.size()) << "not valid UTF-8";
  char32_t c = lead & (0x7F >> bytes);
  for (size_t k = 1; k < bytes; ++k) c = (c << 6) | (ByteAt(s, k) & 0x3F);
  return {c, bytes};
}

DecodedChar DecodeBack(absl::string_view s) {
  size_t start = s.size() - 1;
  while (start > 0 && (ByteAt(s, start) & 0xC0) == 0x80) --start;
  return DecodeFront(s.substr(start));
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return Category(c)[0] == 'N';
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  if (c == 0x200C || c == 0x200D) return true;
  // Other_Alphabetic beyond letters and marks: circled and squared Latin letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  const absl::string_view category = Category(c);
  return category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Nl" ||
         category == "Pc";
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  // Two that were punctuation in Unicode 8 and are not any more.
  if (c == 0x166D || c == 0x111C9) return true;
  if (utf8proc_category_string(static_cast<utf8proc_int32_t>(c))[0] != 'P') return false;
  return !Contains(PunctuationSinceUnicode8(), c);
}

std::string Normalize(NormalForm form, absl::string_view s) {
  // Everything below U+0300 (lead byte 0xCC) is NFC already, ASCII is in every form.
  if (AllBelow(s, form == NormalForm::kNfc ? 0xCC : 0x80)) return std::string(s);
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const int decompose_options =
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> text;
  text.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    const DecodedChar decoded = DecodeFront(s.substr(i));
    i += decoded.bytes;
    // The longest decomposition has 18 characters (U+FDFA).
    utf8proc_int32_t buffer[32];
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(decoded.code_point), buffer, 32,
                                static_cast<utf8proc_option_t>(decompose_options), nullptr);
    CHECK(count >= 0 && count <= 32) << "a decomposition gave " << count;
    text.insert(text.end(), buffer, buffer + count);
  }
  OrderCombiningMarks(&text);
  size_t length = text.size();
  if (compose) {
    const utf8proc_ssize_t composed = utf8proc_normalize_utf32(
        text.data(), static_cast<utf8proc_ssize_t>(length),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    CHECK_GE(composed, 0);
    length = static_cast<size_t>(composed);
  }
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < length; ++i) AppendUtf8(static_cast<char32_t>(text[i]), &out);
  return out;
}

}  // namespace baton::unicode
