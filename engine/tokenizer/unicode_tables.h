// Differences between versions of Unicode that matter to tokenizers. The libraries at hand know
// version 14 (PCRE2) and 15 (utf8proc); the reference implementation's patterns know version 16.
#ifndef BATON_ENGINE_TOKENIZER_UNICODE_TABLES_H_
#define BATON_ENGINE_TOKENIZER_UNICODE_TABLES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::unicode {

struct CategoryRange {
  char32_t first;
  char32_t last;
  char category[3];  // "Lu", "Nd"...
};
// Characters of Unicode 16 that version 14 did not have, or had under another category. Ascending.
absl::Span<const CategoryRange> CategoriesSinceUnicode14();

struct CodePointRange {
  char32_t first;
  char32_t last;
};
// Script Han, characters added after Unicode 14. Ascending.
absl::Span<const CodePointRange> HanSinceUnicode14();
// Punctuation (category P*) of Unicode 15 that was none in Unicode 8. Ascending.
absl::Span<const CodePointRange> PunctuationSinceUnicode8();

// REQUIRES: `ranges` ascending.
bool Contains(absl::Span<const CodePointRange> ranges, char32_t c);

}  // namespace baton::unicode

#endif  // BATON_ENGINE_TOKENIZER_UNICODE_TABLES_H_
