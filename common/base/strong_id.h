// Ids that the compiler keeps apart: a BlockId is not a SequenceId.
#ifndef BATON_COMMON_BASE_STRONG_ID_H_
#define BATON_COMMON_BASE_STRONG_ID_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>

namespace baton {

template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value);
  }
  friend std::ostream& operator<<(std::ostream& os, const StrongId& id) { return os << id.value; }
};

// Index of a physical KV block in one worker's pool. Never leaves the process.
using BlockId = StrongId<struct BlockIdTag, int32_t>;
// Names a sequence inside one engine. Never leaves the process.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;
// Router-minted, unique over all routers (128 random bits would be overkill: 64 bits, of which the
// high half is random per router process). Travels between processes.
using RequestId = StrongId<struct RequestIdTag, uint64_t>;
// Router-minted name of one hand-over (request and attempt).
using TransferId = StrongId<struct TransferIdTag, uint64_t>;

}  // namespace baton

template <typename Tag, typename Rep>
struct std::hash<baton::StrongId<Tag, Rep>> {
  size_t operator()(const baton::StrongId<Tag, Rep>& id) const {
    return std::hash<Rep>()(id.value);
  }
};

#endif  // BATON_COMMON_BASE_STRONG_ID_H_
