#include "engine/tokenizer/bpe_merge.h"

#include <algorithm>
#include <functional>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr uint32_t kNoRule = UINT32_MAX;
// Up to here a scan for the lowest rank beats a heap.
constexpr size_t kShortWordSymbols = 24;

}  // namespace

uint32_t MergeTable::RankOf(const BpeSymbol& left, const BpeSymbol& right) const {
  const Rule* rule = Find(left.id, right.id);
  return rule == nullptr ? kNoRule : rule->rank;
}

void MergeTable::Merge(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShortWordSymbols) {
    MergeShort(symbols, scratch);
  } else {
    MergeLong(symbols, scratch);
  }
}

void MergeTable::MergeShort(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const {
  std::vector<BpeSymbol>& s = *symbols;
  std::vector<uint32_t>& ranks = scratch->ranks;  // ranks[i]: of the pair (i, i + 1)
  ranks.resize(s.size() - 1);
  for (size_t i = 0; i + 1 < s.size(); ++i) ranks[i] = RankOf(s[i], s[i + 1]);
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());  // the leftmost of the lowest
    if (*best == kNoRule) return;
    const size_t i = static_cast<size_t>(best - ranks.begin());
    s[i] = {Find(s[i].id, s[i + 1].id)->result, s[i].bytes + s[i + 1].bytes};
    s.erase(s.begin() + i + 1);
    ranks.erase(ranks.begin() + i);
    if (i > 0) ranks[i - 1] = RankOf(s[i - 1], s[i]);
    if (i < ranks.size()) ranks[i] = RankOf(s[i], s[i + 1]);
  }
}

void MergeTable::MergeLong(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const {
  std::vector<BpeSymbol>& s = *symbols;
  CHECK_LT(s.size(), size_t{1} << 31);
  const auto size = static_cast<int32_t>(s.size());
  auto& links = scratch->links;
  auto& heap = scratch->heap;
  links.resize(s.size());
  heap.clear();
  const auto entry = [](uint32_t rank, int32_t at) {
    return (uint64_t{rank} << 32) | static_cast<uint32_t>(at);
  };
  for (int32_t i = 0; i < size; ++i) {
    links[i] = {i - 1, i + 1 < size ? i + 1 : -1};
    if (i + 1 == size) break;
    const uint32_t rank = RankOf(s[i], s[i + 1]);
    if (rank != kNoRule) heap.push_back(entry(rank, i));
  }
  const std::greater<uint64_t> lowest_first;
  std::make_heap(heap.begin(), heap.end(), lowest_first);
  const auto push_pair = [&](int32_t left, int32_t right) {
    const uint32_t rank = RankOf(s[left], s[right]);
    if (rank == kNoRule) return;
    heap.push_back(entry(rank, left));
    std::push_heap(heap.begin(), heap.end(), lowest_first);
  };
  constexpr int32_t kMerged = -2;  // as a link: this symbol has become part of another
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), lowest_first);
    heap.pop_back();
    const auto at = static_cast<int32_t>(top & 0xFFFFFFFF);
    const int32_t next = links[at].next;
    if (links[at].previous == kMerged || next == -1) continue;
    // An entry is stale when its pair has changed since; the new pair has its own entry.
    const Rule* rule = Find(s[at].id, s[next].id);
    if (rule == nullptr || rule->rank != static_cast<uint32_t>(top >> 32)) continue;
    s[at] = {rule->result, s[at].bytes + s[next].bytes};
    links[at].next = links[next].next;
    links[next].previous = kMerged;
    if (links[at].next != -1) {
      links[links[at].next].previous = at;
      push_pair(at, links[at].next);
    }
    if (links[at].previous != -1) push_pair(links[at].previous, at);
  }
  size_t kept = 0;
  for (int32_t at = 0; at != -1; at = links[at].next) s[kept++] = s[at];
  s.resize(kept);
}

}  // namespace baton
