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

void PairQueue::Clear() {
  bucket_of_rank_.clear();
  num_buckets_ = 0;
  ranks_.clear();
}

void PairQueue::Push(uint32_t rank, int32_t at) {
  const auto [it, is_new] = bucket_of_rank_.try_emplace(rank, static_cast<uint32_t>(num_buckets_));
  if (is_new) {
    if (num_buckets_ == buckets_.size()) buckets_.emplace_back();
    buckets_[num_buckets_].rank = rank;
    buckets_[num_buckets_].is_heap = false;
    buckets_[num_buckets_].head = 0;
    buckets_[num_buckets_].positions.clear();
    ++num_buckets_;
  }
  Bucket& bucket = buckets_[it->second];
  if (bucket.empty()) {
    bucket.head = 0;
    bucket.is_heap = false;
    bucket.positions.clear();
    ranks_.push_back((uint64_t{rank} << 32) | it->second);
    std::push_heap(ranks_.begin(), ranks_.end(), std::greater<uint64_t>());
  }
  std::vector<int32_t>& positions = bucket.positions;
  if (!bucket.is_heap && !positions.empty() && at < positions.back()) {
    positions.erase(positions.begin(), positions.begin() + static_cast<ptrdiff_t>(bucket.head));
    bucket.head = 0;
    bucket.is_heap = true;  // an ascending sequence is one already
  }
  positions.push_back(at);
  if (bucket.is_heap) {
    std::push_heap(positions.begin(), positions.end(), std::greater<int32_t>());
  }
}

PairQueue::Pair PairQueue::Pop() {
  Bucket& bucket = buckets_[ranks_.front() & 0xFFFFFFFF];
  Pair pair{bucket.rank, 0};
  if (bucket.is_heap) {
    std::pop_heap(bucket.positions.begin(), bucket.positions.end(), std::greater<int32_t>());
    pair.at = bucket.positions.back();
    bucket.positions.pop_back();
  } else {
    pair.at = bucket.positions[bucket.head++];
  }
  if (bucket.empty()) {
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<uint64_t>());
    ranks_.pop_back();
  }
  return pair;
}

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
  PairQueue& queue = scratch->queue;
  links.resize(s.size());
  queue.Clear();
  const auto push_pair = [&](int32_t left, int32_t right) {
    const uint32_t rank = RankOf(s[left], s[right]);
    if (rank != kNoRule) queue.Push(rank, left);
  };
  for (int32_t i = 0; i < size; ++i) {
    links[i] = {i - 1, i + 1 < size ? i + 1 : -1};
    if (i + 1 < size) push_pair(i, i + 1);
  }
  constexpr int32_t kMerged = -2;  // as a link: this symbol has become part of another
  while (!queue.empty()) {
    const PairQueue::Pair top = queue.Pop();
    const int32_t at = top.at;
    const int32_t next = links[at].next;
    if (links[at].previous == kMerged || next == -1) continue;
    // An entry is stale when its pair has changed since; the new pair has its own entry.
    const Rule* rule = Find(s[at].id, s[next].id);
    if (rule == nullptr || rule->rank != top.rank) continue;
    s[at] = {rule->result, s[at].bytes + s[next].bytes};
    links[at].next = links[next].next;
    links[next].previous = kMerged;
    if (links[at].previous != -1) push_pair(links[at].previous, at);
    if (links[at].next != -1) {
      links[links[at].next].previous = at;
      push_pair(at, links[at].next);
    }
  }
  size_t kept = 0;
  for (int32_t at = 0; at != -1; at = links[at].next) s[kept++] = s[at];
  s.resize(kept);
}

}  // namespace baton
