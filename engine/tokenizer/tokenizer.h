// Text to token ids and back, as the model's own files say: tokenizer.json (BPE) or a SentencePiece
// tokenizer.model (BPE). Device-free: the router links this and receives the files' bytes from the
// workers. Immutable after Create, so every method is thread-safe; nothing blocks.
//
// The reference is Hugging Face `tokenizers` on the same file (encode and decode); for a
// tokenizer.model, `sentencepiece`. Known, deliberate differences:
// - Decode replaces invalid bytes so that a stream and the whole list agree. Byte-level
// vocabularies:
//   one U+FFFD per maximal invalid subpart (as `tokenizers`). Byte-fallback vocabularies: one
//   U+FFFD per invalid byte (as `sentencepiece`); `tokenizers` also drops valid characters that
//   stand in one run of byte tokens with an invalid byte, which cannot be known while streaming.
// - Truncation and padding settings of tokenizer.json are not used.
// - Decode never "cleans up" spaces, whatever clean_up_tokenization_spaces says.
// - Unicode classes are those of version 16 (split patterns); NFC and NFKC follow utf8proc's
// version.
#ifndef BATON_ENGINE_TOKENIZER_TOKENIZER_H_
#define BATON_ENGINE_TOKENIZER_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tokenizer/token_table.h"

namespace baton {

// The bytes of the files, not their paths. With both a tokenizer.json and a tokenizer.model the
// former is used.
struct TokenizerFiles {
  std::string tokenizer_json;   // empty when absent
  std::string tokenizer_model;  // SentencePiece; empty when absent
  // May be empty. Read: bos_token, eos_token, add_bos_token, add_eos_token; with a tokenizer.model
  // also added_tokens_decoder. The rest (chat_template, model_max_length...) is not for us.
  std::string tokenizer_config_json;
};

struct EncodeOptions {
  // Adds what the model's template adds round a text, usually BOS. A text that already spells BOS
  // gets a second one: whoever writes BOS into a text turns this off.
  bool add_special_tokens = true;
  // Text that spells a control token becomes that token only when true; otherwise it is plain text
  // and no id with IsSpecial() is produced from it. Tokens added to the vocabulary that are not
  // control tokens are found in the text either way.
  bool parse_special = false;
  // More tokens than this (added ones included) is an error, found early.
  size_t tokens_max = SIZE_MAX;
};

struct DecodeOptions {
  // Leaves out tokens with IsSpecial(), BOS for instance.
  bool skip_special = true;
  // The ids continue a text (generated tokens after their prompt): a leading space is then kept.
  // When false, vocabularies that put a space before the first word of a text on encoding (see
  // strips_leading_space()) take it away again.
  bool follows_prompt = false;
};

// How invalid UTF-8 in the concatenated token bytes is replaced.
enum class InvalidUtf8 { kReplaceMaximalSubpart, kReplaceEachByte };

// What decoding takes off the front of a text.
struct LeadingSpaceRule {
  enum class Kind {
    kKeep,
    kStripSpaces,      // up to `spaces_max` spaces off the text
    kStripFirstToken,  // all spaces off the first token
  };
  Kind kind = Kind::kKeep;
  size_t spaces_max = 0;
};

class Tokenizer {
 public:
  // ERRORS: InvalidArgument for malformed files (neither file there, bad JSON or protobuf, ids out
  // of range, a merge of unknown tokens...); FailedPrecondition naming a component that is not
  // supported: nothing in a file is ignored silently but what is listed above.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const TokenizerFiles& files);

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Time is O(n log n) in the length of the text, whatever the text is. U+0000 is a character like
  // any other. ERRORS: InvalidArgument for invalid UTF-8 (naming the byte offset, never echoing the
  // text), for more than tokens_max tokens and for a text beyond 64 MiB; ResourceExhausted when the
  // split pattern exceeds its matching limits on this text.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8,
                                                      const EncodeOptions& options) const = 0;

  // The text of a list of ids; always valid UTF-8. Unknown ids add nothing.
  std::string Decode(absl::Span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The bytes that one token adds to a text (not always valid UTF-8 on its own): byte-level tokens
  // mapped back, ▁ as a space, <0xXX> as that byte, special tokens as their content. Empty for an
  // unknown id.
  std::string TokenBytes(int32_t id) const { return std::string(table_.Bytes(id)); }
  // The same without a copy; lives as long as the tokenizer.
  absl::string_view TokenBytesView(int32_t id) const { return table_.Bytes(id); }
  // Control tokens. False for an unknown id.
  bool IsSpecial(int32_t id) const { return table_.IsSpecial(id); }
  bool HasToken(int32_t id) const { return table_.Has(id); }
  // The id of a special token by its content, for instance "<|im_end|>"; nothing if there is none.
  std::optional<int32_t> SpecialTokenId(absl::string_view content) const;

  // 1 + the highest id, added tokens included. The model's head may have more rows.
  int32_t vocab_size() const { return table_.size(); }
  // From tokenizer_config.json, else from the tokenizer's own file. The ids that end generation are
  // the model's business (config.json, generation_config.json).
  std::optional<int32_t> bos_id() const { return traits_.bos_id; }
  std::optional<int32_t> eos_id() const { return traits_.eos_id; }
  // Whether add_special_tokens puts bos_id() before a text.
  bool adds_bos() const;
  // Whether Decode takes a space off the front of a text that follows nothing.
  bool strips_leading_space() const {
    return traits_.leading_space.kind != LeadingSpaceRule::Kind::kKeep;
  }
  const LeadingSpaceRule& leading_space() const { return traits_.leading_space; }
  InvalidUtf8 invalid_utf8() const { return traits_.invalid_utf8; }
  // What add_special_tokens puts before and after a text.
  absl::Span<const int32_t> prefix_ids() const { return traits_.prefix_ids; }
  absl::Span<const int32_t> suffix_ids() const { return traits_.suffix_ids; }

 protected:
  struct Traits {
    std::optional<int32_t> bos_id;
    std::optional<int32_t> eos_id;
    std::vector<int32_t> prefix_ids;
    std::vector<int32_t> suffix_ids;
    absl::flat_hash_map<std::string, int32_t> special_tokens;  // by content
    LeadingSpaceRule leading_space;
    InvalidUtf8 invalid_utf8 = InvalidUtf8::kReplaceMaximalSubpart;
  };
  Tokenizer(TokenTable table, Traits traits);

  const TokenTable& table() const { return table_; }

 private:
  const TokenTable table_;
  const Traits traits_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKENIZER_H_
