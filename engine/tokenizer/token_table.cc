#include "engine/tokenizer/token_table.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<TokenTable> TokenTable::Build(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  size_t total_bytes = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int32_t id = entries[i].id;
    if (id < 0 || id > kTokenIdMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside 0..", kTokenIdMax));
    }
    if (i > 0 && entries[i - 1].id == id) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", id, " is given to two tokens"));
    }
    total_bytes += entries[i].bytes.size();
  }
  TokenTable table;
  if (entries.empty()) return table;
  const size_t size = static_cast<size_t>(entries.back().id) + 1;
  table.flags_.assign(size, 0);
  table.offsets_.assign(size + 1, 0);
  table.arena_.reserve(total_bytes);
  size_t next = 0;
  for (size_t id = 0; id < size; ++id) {
    table.offsets_[id] = table.arena_.size();
    if (static_cast<size_t>(entries[next].id) != id) continue;
    table.arena_ += entries[next].bytes;
    table.flags_[id] = kExists | (entries[next].special ? kSpecial : 0);
    ++next;
  }
  table.offsets_[size] = table.arena_.size();
  return table;
}

}  // namespace baton
