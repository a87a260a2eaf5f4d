// The BPE model of a tokenizer.json: turns one word into token ids. Behaves as Hugging Face's BPE
// without dropout. Immutable, thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_BPE_MODEL_H_
#define BATON_ENGINE_TOKENIZER_BPE_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/bpe_merge.h"

namespace baton {

// Working memory, kept from word to word. Owned by one call at a time.
struct BpeScratch {
  std::vector<BpeSymbol> symbols;
  MergeScratch merge;
};

class BpeModel {
 public:
  struct Spec {
    absl::flat_hash_map<std::string, int32_t> vocab;          // no id twice
    std::vector<std::pair<std::string, std::string>> merges;  // in rank order
    std::string unk_token;                                    // empty: none
    bool fuse_unk = false;
    bool byte_fallback = false;
    bool ignore_merges = false;
    // Words will be raw bytes and the vocabulary is written in the byte-level alphabet.
    bool byte_level = false;
    // Ids that must not come out of plain text.
    absl::flat_hash_set<int32_t> special_ids;
  };
  // Knows no token.
  BpeModel() { id_of_ascii_.fill(-1); }
  // ERRORS: InvalidArgument for a merge whose parts or result are not in the vocabulary, for an
  // unk_token that is not.
  static absl::StatusOr<BpeModel> Build(const Spec& spec);

  // True when the model wants words as raw bytes: `byte_level` was set and all 256 bytes have a
  // token. (With bytes missing, words are taken in the alphabet and those bytes are unknown.)
  bool takes_raw_bytes() const { return takes_raw_bytes_; }

  // A lower bound on the tokens of a word, known without merging it: a long run can be refused
  // before any work. 0 when characters may vanish.
  size_t TokensAtLeast(size_t word_bytes) const {
    return takes_raw_bytes_ ? (word_bytes + longest_word_bytes_ - 1) / longest_word_bytes_ : 0;
  }

  // Appends the ids of `word`: raw bytes, or valid UTF-8, see takes_raw_bytes(). A special id comes
  // out only with `allow_special`; otherwise it is taken apart again into what it was merged from.
  // Characters without a token and without a fallback add nothing, as in the reference.
  void Encode(absl::string_view word, bool allow_special, BpeScratch* scratch,
              std::vector<int32_t>* out) const;

  // Cuts a word where no merge can cross (see space_mark.h), or gives it as a whole. REQUIRES: not
  // empty.
  void CutAtSpaces(absl::string_view text, std::vector<absl::string_view>* words) const;

 private:
  absl::Status AddMerges(const Spec& spec);
  void AddAlphabet(const Spec& spec);
  void AddWords(const Spec& spec);
  void FindCuts(const Spec& spec);
  int32_t IdOfChar(char32_t c) const;
  void AddSymbols(absl::string_view word, std::vector<BpeSymbol>* symbols) const;
  // True when the bytes of `character` all have byte tokens, which are then added.
  bool AddByteTokens(absl::string_view character, std::vector<BpeSymbol>* symbols) const;
  void AppendId(int32_t id, bool allow_special, std::vector<int32_t>* out) const;

  bool takes_raw_bytes_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool cuts_at_spaces_ = false;
  size_t longest_word_bytes_ = 1;  // of the vocabulary, in the form that Encode takes
  int32_t unk_id_ = -1;
  std::array<int32_t, 256> id_of_byte_{};   // raw bytes: their token; else <0xXX>; -1: none
  std::array<int32_t, 128> id_of_ascii_{};  // -1: none
  absl::flat_hash_map<char32_t, int32_t> id_of_char_;
  MergeTable merges_;
  // Words that are one token as a whole, in the form that Encode takes.
  absl::flat_hash_map<std::string, int32_t> words_;
  absl::flat_hash_set<int32_t> special_ids_;
  absl::flat_hash_map<int32_t, std::pair<int32_t, int32_t>> parts_of_special_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_BPE_MODEL_H_
