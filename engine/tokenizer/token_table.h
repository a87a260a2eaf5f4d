// What each token id stands for: its bytes and flags. Ids may have holes. Immutable once built, and
// then thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_TOKEN_TABLE_H_
#define BATON_ENGINE_TOKENIZER_TOKEN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

// Ids beyond this are refused: a file must not be able to make us allocate by naming a huge id. The
// largest vocabularies in use have about 262,000 tokens.
inline constexpr int32_t kTokenIdMax = (1 << 21) - 1;

class TokenTable {
 public:
  struct Entry {
    int32_t id = 0;
    std::string bytes;  // what the token adds to the text; need not be valid UTF-8 on its own
    bool special = false;
  };

  TokenTable() = default;
  // Entries in any order. ERRORS: InvalidArgument for an id that is negative, beyond kTokenIdMax or
  // there twice.
  static absl::StatusOr<TokenTable> Build(std::vector<Entry> entries);

  // 1 + the highest id; 0 when empty.
  int32_t size() const { return static_cast<int32_t>(flags_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size() && (flags_[id] & kExists) != 0; }
  bool IsSpecial(int32_t id) const {
    return id >= 0 && id < size() && (flags_[id] & kSpecial) != 0;
  }
  // Empty for an unknown id. Lives as long as the table.
  absl::string_view Bytes(int32_t id) const {
    if (!Has(id)) return {};
    return absl::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

 private:
  static constexpr uint8_t kExists = 1;
  static constexpr uint8_t kSpecial = 2;

  std::string arena_;              // all bytes, in id order
  std::vector<uint64_t> offsets_;  // [size + 1]
  std::vector<uint8_t> flags_;     // [size]
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKEN_TABLE_H_
