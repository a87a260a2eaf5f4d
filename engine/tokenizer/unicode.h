// UTF-8 and the few Unicode properties that tokenizers ask for. Stateless, thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_UNICODE_H_
#define BATON_ENGINE_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::unicode {

// Offset of the first byte that is not part of a well-formed character (Unicode, table 3-7: no
// overlong forms, no surrogates, nothing above U+10FFFF); npos when all of `s` is valid.
size_t FindInvalidUtf8(absl::string_view s);

struct DecodedChar {
  char32_t code_point;
  size_t bytes;
};
// The character at the front of `s`. REQUIRES: `s` is valid UTF-8 and not empty.
DecodedChar DecodeFront(absl::string_view s);
// The character that ends `s`; same requirements.
DecodedChar DecodeBack(absl::string_view s);
void AppendUtf8(char32_t code_point, std::string* out);

// White_Space.
bool IsWhitespace(char32_t c);
// General category Nd, Nl or No (Unicode 16).
bool IsNumeric(char32_t c);
// What Rust's regex calls \w: Alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t c);
// ASCII punctuation and symbols, and general category P* as of Unicode 8: the table that Hugging
// Face's Punctuation pre-tokenizer is built on. A later character is no punctuation to it, and
// models were trained that way.
bool IsPunctuation(char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES: `s` is valid UTF-8. Linear in its length but for the sorting of runs of combining marks
// (n log n).
std::string Normalize(NormalForm form, absl::string_view s);

}  // namespace baton::unicode

#endif  // BATON_ENGINE_TOKENIZER_UNICODE_H_
