// The work list covers every (token, head) once, longest first, and never exceeds its bound.
#include "kernels/prefill_attention/prefill_attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace baton::kernels {
namespace {

void ExpectCoversAll(const PrefillPlanShape& shape, const std::vector<int32_t>& query_lengths,
                     const std::vector<int32_t>& kv_lengths) {
  std::vector<PrefillWork> work;
  PlanPrefillAttention(shape, query_lengths, kv_lengths, &work);
  const PrefillTiling tiling = PrefillTilingOf(shape.kernel, shape.head_dim);
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int> covered;
  int64_t num_tokens = 0;
  for (const int32_t length : query_lengths) num_tokens += length;
  for (const PrefillWork& w : work) {
    ASSERT_GE(w.sequence, 0);
    ASSERT_LT(w.sequence, static_cast<int32_t>(query_lengths.size()));
    ASSERT_GE(w.heads, 1);
    ASSERT_EQ(group % w.heads, 0);
    ASSERT_EQ(w.head / group, (w.head + w.heads - 1) / group) << "heads share a KV head";
    const int32_t length = query_lengths[static_cast<size_t>(w.sequence)];
    const int32_t end = std::min(length, w.token_begin + tiling.rows / w.heads);
    ASSERT_LT(w.token_begin, end);
    for (int32_t token = w.token_begin; token < end; ++token) {
      for (int32_t head = w.head; head < w.head + w.heads; ++head) {
        ++covered[{w.sequence, token, head}];
      }
    }
  }
  ASSERT_EQ(static_cast<int64_t>(covered.size()), num_tokens * shape.num_heads);
  for (const auto& [row, times] : covered) ASSERT_EQ(times, 1);
  EXPECT_LE(static_cast<int64_t>(work.size()),
            PrefillWorkMax(shape, num_tokens, static_cast<int64_t>(query_lengths.size())));
}

TEST(PlanPrefillAttention, CoversEveryRowOnce) {
  std::mt19937 random(1);
  for (const PrefillKernel kernel : {PrefillKernel::kSm90, PrefillKernel::kMma}) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int32_t, int32_t>>{
             {1, 1}, {4, 4}, {8, 2}, {6, 2}, {12, 1}, {160, 1}, {71, 1}}) {
      for (const int32_t head_dim : {64, 128, 256}) {
        std::vector<int32_t> query_lengths;
        std::vector<int32_t> kv_lengths;
        for (int i = 0; i < 6; ++i) {
          query_lengths.push_back(static_cast<int32_t>(random() % 300) * (i != 2));
          kv_lengths.push_back(query_lengths.back() + static_cast<int32_t>(random() % 300));
        }
        ExpectCoversAll(
            {kernel, heads, kv_heads, head_dim, static_cast<int32_t>(random() % 2 * 100)},
            query_lengths, kv_lengths);
      }
    }
  }
}

TEST(PlanPrefillAttention, IsEmptyForNoTokens) {
  std::vector<PrefillWork> work;
  PlanPrefillAttention({PrefillKernel::kSm90, 32, 8, 128, 0}, {}, {}, &work);
  EXPECT_TRUE(work.empty());
  PlanPrefillAttention({PrefillKernel::kSm90, 32, 8, 128, 0}, {0, 0}, {0, 7}, &work);
  EXPECT_TRUE(work.empty());
}

TEST(PlanPrefillAttention, ListsLongTilesFirst) {
  std::vector<PrefillWork> work;
  PlanPrefillAttention({PrefillKernel::kSm90, 2, 2, 128, 0}, {1024, 256}, {1024, 2048}, &work);
  ASSERT_EQ(work.size(), (8u + 2u) * 2u);
  EXPECT_EQ(work.front().sequence, 1);
  EXPECT_EQ(work.front().token_begin, 128);
  EXPECT_EQ(work.back().sequence, 0);
  EXPECT_EQ(work.back().token_begin, 0);
}

TEST(PlanPrefillAttention, KeepsTheContextOfASectionWithinTheCache) {
  // 16k tokens of 128: 8 MiB a head, so 4 heads at a time.
  std::vector<PrefillWork> work;
  PlanPrefillAttention({PrefillKernel::kSm90, 32, 32, 128, 0}, {16384}, {16384}, &work);
  ASSERT_EQ(work.size(), 128u * 32u);
  for (size_t i = 0; i < work.size(); ++i) {
    EXPECT_EQ(work[i].head / 4, static_cast<int32_t>(i / 512));
  }
}

TEST(PlanPrefillAttention, FoldsHeadsOfShortChunks) {
  std::vector<PrefillWork> work;
  PlanPrefillAttention({PrefillKernel::kSm90, 32, 8, 128, 0}, {1}, {5000}, &work);
  ASSERT_EQ(work.size(), 8u);
  for (const PrefillWork& w : work) EXPECT_EQ(w.heads, 4);
  // Five heads of a group: 25 tokens a tile leave 3 rows idle, 128 tokens a tile leave none.
  work.clear();
  PlanPrefillAttention({PrefillKernel::kSm90, 5, 1, 128, 0}, {128}, {60000}, &work);
  for (const PrefillWork& w : work) EXPECT_EQ(w.heads, 1);
}

}  // namespace
}  // namespace baton::kernels
