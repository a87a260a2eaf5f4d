// The alphabet of byte-level BPE: each of the 256 bytes has a printable character of its own, in
// which vocabularies are written ("Ġ" is the space). Source: GPT-2's bytes_to_unicode. Thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_BYTE_LEVEL_H_
#define BATON_ENGINE_TOKENIZER_BYTE_LEVEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::byte_level {

// The character of a byte, as UTF-8.
absl::string_view CharOfByte(uint8_t byte);
// Every byte of `bytes` as its character.
std::string Encode(absl::string_view bytes);
// The bytes of a token written in the alphabet; nothing when a character is not of the alphabet.
// REQUIRES: `token` is valid UTF-8.
std::optional<std::string> Decode(absl::string_view token);

}  // namespace baton::byte_level

#endif  // BATON_ENGINE_TOKENIZER_BYTE_LEVEL_H_
