// Goal: merging follows rank, then position, for short and long words alike, and stays n log n.
// Method: against a plain loop that rescans the word after every merge.
#include "engine/tokenizer/bpe_merge.h"
#include "engine/tokenizer/tokenizer_testing.h"

#include <gtest/gtest.h>

#include <random>

namespace baton {
namespace {

struct Rule {
  int32_t left, right, result;
  uint32_t rank;
};

std::vector<int32_t> MergeByRescanning(const std::vector<Rule>& rules, std::vector<int32_t> ids) {
  while (true) {
    const Rule* best = nullptr;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const Rule& rule : rules) {
        if (rule.left != ids[i] || rule.right != ids[i + 1]) continue;
        if (best == nullptr || rule.rank < best->rank) {
          best = &rule;
          best_at = i;
        }
      }
    }
    if (best == nullptr) return ids;
    ids[best_at] = best->result;
    ids.erase(ids.begin() + best_at + 1);
  }
}

std::vector<int32_t> MergeIds(const MergeTable& table, const std::vector<int32_t>& ids) {
  std::vector<BpeSymbol> symbols;
  for (const int32_t id : ids) symbols.push_back({id, 1});
  MergeScratch scratch;
  table.Merge(&symbols, &scratch);
  std::vector<int32_t> out;
  uint32_t bytes = 0;
  for (const BpeSymbol& symbol : symbols) {
    out.push_back(symbol.id);
    bytes += symbol.bytes;
  }
  EXPECT_EQ(bytes, ids.size()) << "lengths must add up to the word's";
  return out;
}

TEST(MergeTable, EqualsRescanningOnRandomRulesAndWords) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Rule> rules;
    MergeTable table;
    const int alphabet = 2 + static_cast<int>(random() % 4);
    int32_t next_id = alphabet;
    for (uint32_t i = 0; i < 20; ++i) {
      const Rule rule{static_cast<int32_t>(random() % next_id),
                      static_cast<int32_t>(random() % next_id), next_id,
                      // Some ranks are shared, as scores of SentencePiece may be.
                      round % 2 == 0 ? i : i / 3};
      bool taken = false;
      for (const Rule& other : rules) {
        taken |= other.left == rule.left && other.right == rule.right;
      }
      if (taken) continue;
      ++next_id;
      rules.push_back(rule);
      table.Add(rule.left, rule.right, rule.rank, rule.result);
    }
    for (const size_t length :
         {size_t{0}, size_t{1}, size_t{2}, size_t{23}, size_t{24}, size_t{25}, size_t{200}}) {
      std::vector<int32_t> ids(length);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % alphabet);
      ASSERT_EQ(MergeIds(table, ids), MergeByRescanning(rules, ids)) << round << " " << length;
    }
  }
}

TEST(MergeTable, TakesTheLaterRuleForAPair) {
  MergeTable table;
  table.Add(0, 0, 0, 1);
  table.Add(0, 0, 5, 2);
  EXPECT_EQ(MergeIds(table, {0, 0}), std::vector<int32_t>{2});
}

TEST(MergeTable, NeverMergesIdsWithoutRules) {
  MergeTable table;
  table.Add(0, 1, 0, 2);
  EXPECT_EQ(MergeIds(table, {-1, -1, 0, 1, -1}), (std::vector<int32_t>{-1, -1, 2, -1}));
}

TEST(MergeTable, MergesAMillionEqualSymbolsQuickly) {
  MergeTable table;
  for (int32_t i = 0; i < 20; ++i) table.Add(i, i, static_cast<uint32_t>(i), i + 1);
  const double start = testing::ThreadCpuSeconds();
  const auto ids = MergeIds(table, std::vector<int32_t>(1 << 20, 0));
  EXPECT_EQ(ids, std::vector<int32_t>{20});
  EXPECT_LT(testing::ThreadCpuSeconds() - start, testing::kOneSecond);
}

}  // namespace
}  // namespace baton
