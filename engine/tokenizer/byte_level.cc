#include "engine/tokenizer/byte_level.h"

#include <array>

#include "engine/tokenizer/unicode.h"

namespace baton::byte_level {
namespace {

constexpr int kNoByte = -1;
constexpr char32_t kAlphabetEnd = 0x100 + 68;  // 68 bytes are not printable in Latin-1

struct Alphabet {
  std::array<std::string, 256> char_of_byte;
  std::array<int, kAlphabetEnd> byte_of_char;
};

bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const Alphabet& GetAlphabet() {
  static const Alphabet alphabet = [] {
    Alphabet a;
    a.byte_of_char.fill(kNoByte);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = IsPrintableLatin1(byte) ? static_cast<char32_t>(byte) : next++;
      unicode::AppendUtf8(c, &a.char_of_byte[byte]);
      a.byte_of_char[c] = byte;
    }
    return a;
  }();
  return alphabet;
}

}  // namespace

absl::string_view CharOfByte(uint8_t byte) { return GetAlphabet().char_of_byte[byte]; }

std::string Encode(absl::string_view bytes) {
  const Alphabet& alphabet = GetAlphabet();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += alphabet.char_of_byte[static_cast<unsigned char>(c)];
  return out;
}

std::optional<std::string> Decode(absl::string_view token) {
  const Alphabet& alphabet = GetAlphabet();
  std::string out;
  while (!token.empty()) {
    const unicode::DecodedChar decoded = unicode::DecodeFront(token);
    if (decoded.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet.byte_of_char[decoded.code_point];
    if (byte == kNoByte) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    token.remove_prefix(decoded.bytes);
  }
  return out;
}

}  // namespace baton::byte_level
