// Turns one stream of token ids into text, piece by piece. The concatenation of all Push results
// and Finish equals Tokenizer::Decode of the whole list with the same options (Decode is built on
// this class). Every piece is valid UTF-8: at most 3 bytes, a proper prefix of a character, are
// held back, and only while they may still become one.
//
// Thread-compatible: owned by one stream.
#ifndef BATON_ENGINE_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
#define BATON_ENGINE_TOKENIZER_INCREMENTAL_DETOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton {

// Passes bytes on as valid UTF-8; see InvalidUtf8 for what becomes of the others.
class Utf8Assembler {
 public:
  explicit Utf8Assembler(InvalidUtf8 policy) : policy_(policy) {}

  void Append(absl::string_view bytes, std::string* out);
  // An incomplete tail becomes U+FFFD.
  void Finish(std::string* out);
  size_t pending_bytes() const { return pending_size_; }

 private:
  void Replace(size_t bytes, std::string* out) const;
  void AppendByte(unsigned char byte, std::string* out);

  InvalidUtf8 policy_;
  size_t pending_size_ = 0;
  char pending_[4] = {};
  // The range that the next byte must be in while something is pending (Unicode, table 3-7).
  unsigned char next_min_ = 0x80;
  unsigned char next_max_ = 0xBF;
  size_t wanted_ = 0;  // bytes of the pending character in all
};

class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this object. For generated tokens: {.follows_prompt = true} whenever
  // the prompt has a text that the client sees as coming before, so that a first "▁word" keeps its
  // space.
  explicit IncrementalDetokenizer(const Tokenizer* tokenizer, const DecodeOptions& options = {});

  // The text that is now certain; may be empty. Unknown ids and skipped special tokens add nothing.
  std::string Push(int32_t id);
  // The rest; the stream is then at its start again.
  std::string Finish();

  size_t pending_bytes() const { return assembler_.pending_bytes(); }

 private:
  void Reset();

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  Utf8Assembler assembler_;
  bool at_first_token_ = true;
  size_t strip_spaces_left_ = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
