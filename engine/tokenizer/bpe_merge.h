// Byte-pair merging: joins neighbouring symbols by rank until no pair has a rule. Both kinds of BPE
// use it (ranked merges of tokenizer.json, scored pieces of SentencePiece). The order is that of
// the references: lowest rank first, leftmost first among equals. O(n log n) in the number of
// symbols.
//
// MergeTable is immutable once filled, and then thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_BPE_MERGE_H_
#define BATON_ENGINE_TOKENIZER_BPE_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

struct BpeSymbol {
  int32_t id = 0;      // negative ids are allowed, but no rule has them
  uint32_t bytes = 0;  // length of the source text
};

// Pairs that wait to be merged: lowest rank first, leftmost first within a rank. Pairs of one rank
// mostly come from left to right (a run of one character gives only such), which costs nothing; a
// rank whose pairs do not is kept as a heap. Thread-compatible.
class PairQueue {
 public:
  void Clear();
  void Push(uint32_t rank, int32_t at);
  bool empty() const { return ranks_.empty(); }
  struct Pair {
    uint32_t rank;
    int32_t at;
  };
  // REQUIRES: not empty.
  Pair Pop();

 private:
  struct Bucket {
    uint32_t rank = 0;
    bool is_heap = false;
    size_t head = 0;  // ascending buckets: the next to pop
    std::vector<int32_t> positions;
    bool empty() const { return head == positions.size(); }
  };
  absl::flat_hash_map<uint32_t, uint32_t> bucket_of_rank_;
  std::vector<Bucket> buckets_;  // the first num_buckets_ are in use
  size_t num_buckets_ = 0;
  std::vector<uint64_t> ranks_;  // a heap: rank in the high half, its bucket in the low half
};

// Working memory, kept from word to word. Owned by one call at a time.
struct MergeScratch {
  struct Link {
    int32_t previous;
    int32_t next;  // -1 at the end
  };
  std::vector<uint32_t> ranks;
  std::vector<Link> links;
  PairQueue queue;
};

class MergeTable {
 public:
  // A rule for the same pair replaces the earlier one.
  void Add(int32_t left, int32_t right, uint32_t rank, int32_t result) {
    rules_[Key(left, right)] = {rank, result};
  }
  void Reserve(size_t rules) { rules_.reserve(rules); }
  size_t size() const { return rules_.size(); }

  // Merges in place. REQUIRES: fewer than 2^31 symbols.
  void Merge(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const;

 private:
  struct Rule {
    uint32_t rank;
    int32_t result;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  const Rule* Find(int32_t left, int32_t right) const {
    const auto it = rules_.find(Key(left, right));
    return it == rules_.end() ? nullptr : &it->second;
  }
  uint32_t RankOf(const BpeSymbol& left, const BpeSymbol& right) const;
  void MergeShort(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const;
  void MergeLong(std::vector<BpeSymbol>* symbols, MergeScratch* scratch) const;

  absl::flat_hash_map<uint64_t, Rule> rules_;
};

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_BPE_MERGE_H_
