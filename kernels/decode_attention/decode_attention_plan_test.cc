// Every (row, key) pair of a step is covered exactly once, partial results and counters are
// numbered as the kernel expects, runs are even, and in fixed mode splits depend on the sequence
// only.
#include "kernels/decode_attention/decode_attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace baton::kernels {
namespace {

struct Step {
  std::vector<int32_t> query_starts = {0};
  std::vector<int32_t> kv_lengths;
  std::vector<int32_t> block_table_starts = {0};

  void Add(int32_t query_length, int32_t kv_length) {
    query_starts.push_back(query_starts.back() + query_length);
    kv_lengths.push_back(kv_length);
    block_table_starts.push_back(block_table_starts.back() + (kv_length + 63) / 64);
  }
  DecodePlanInput Input() const {
    return {.query_starts = query_starts,
            .kv_lengths = kv_lengths,
            .block_table_starts = block_table_starts};
  }
  int64_t KvTokens() const {
    int64_t sum = 0;
    for (int32_t length : kv_lengths) sum += length;
    return sum;
  }
};

DecodePlanOptions Options(DecodeSplit split) {
  DecodePlanOptions options;
  options.shape = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .query_length_max = 1};
  options.grid_size = 264;
  options.split = split;
  return options;
}

DecodePlan Plan(DecodePlanOptions options, const Step& step) {
  const auto num_sequences = static_cast<int32_t>(step.kv_lengths.size());
  options.items_max = DecodeItemsMax(options, num_sequences);
  options.partials_max = DecodePartialsMax(options, num_sequences, step.KvTokens());
  DecodePlan plan;
  EXPECT_TRUE(PlanDecodeAttention(options, step.Input(), &plan));
  return plan;
}

using UnitKey = std::tuple<int32_t, int16_t, int16_t>;  // query_start, kv_head, row_begin

// Items by unit in the order of keys; checks the chains and the rows of padding.
std::map<UnitKey, std::vector<DecodeItem>> ItemsOfUnits(const DecodePlanOptions& options,
                                                        const DecodePlan& plan,
                                                        std::set<int32_t>* zero_rows) {
  std::map<UnitKey, std::vector<DecodeItem>> units;
  size_t seen = 0;
  for (int32_t block = 0; block < options.grid_size; ++block) {
    for (int32_t i = block; i >= 0; i = plan.items[i].next) {
      ++seen;
      const DecodeItem& item = plan.items[i];
      if (item.num_rows == 0) {
        EXPECT_EQ(item.next, -1);
      } else if (item.kv_head == kDecodeZeroRows) {
        for (int32_t r = 0; r < item.num_rows; ++r) {
          EXPECT_TRUE(zero_rows->insert(item.query_start + r).second);
        }
      } else {
        units[{item.query_start, item.kv_head, item.row_begin}].push_back(item);
      }
    }
  }
  EXPECT_EQ(seen, plan.items.size());
  for (auto& [key, items] : units) {
    std::sort(items.begin(), items.end(),
              [](const DecodeItem& a, const DecodeItem& b) { return a.tile_begin < b.tile_begin; });
  }
  return units;
}

void CheckUnit(const DecodePlanOptions& options, const Step& step, int32_t s,
               const std::vector<DecodeItem>& items, std::vector<bool>* partials,
               std::map<int32_t, int32_t>* counters) {
  const DecodeAttentionShape& shape = options.shape;
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  const DecodeItem& front = items.front();
  const int32_t query_length = step.query_starts[s + 1] - step.query_starts[s];
  const int32_t first = step.kv_lengths[s] - query_length + front.row_begin / group;
  const int32_t last =
      step.kv_lengths[s] - query_length + (front.row_begin + front.num_rows - 1) / group;
  const int32_t begin = shape.window > 0 ? std::max(0, first - shape.window + 1) : 0;
  EXPECT_EQ(front.tile_begin, begin / 64);
  EXPECT_EQ(items.back().tile_end, last / 64 + 1);
  const bool fixed = options.split == DecodeSplit::kFixed;
  const int32_t split_tiles = options.split_tokens / 64;
  int32_t splits = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const DecodeItem& item = items[i];
    EXPECT_LT(item.tile_begin, item.tile_end);
    EXPECT_EQ(item.first_position, step.kv_lengths[s] - query_length);
    EXPECT_EQ(item.block_table, step.block_table_starts[s]);
    EXPECT_EQ(item.num_items, static_cast<int>(items.size()));
    if (i > 0) {
      EXPECT_EQ(item.tile_begin, items[i - 1].tile_end);
      if (fixed) {
        EXPECT_EQ(item.tile_begin % split_tiles, 0);
      }
    }
    const int32_t own =
        fixed ? (item.tile_end - 1) / split_tiles - item.tile_begin / split_tiles + 1 : 1;
    if (item.num_splits > 1) {
      EXPECT_EQ(item.partial, item.unit_partial + splits);
      for (int32_t p = item.partial; p < item.partial + own; ++p) {
        ASSERT_LT(p, static_cast<int>(partials->size()));
        EXPECT_FALSE((*partials)[p]);
        (*partials)[p] = true;
      }
    }
    splits += own;
  }
  EXPECT_EQ(splits, front.num_splits);
  if (items.size() > 1) {
    EXPECT_TRUE(counters->insert({front.counter, 1}).second);
  }
}

void CheckPlan(const DecodePlanOptions& options, const Step& step, const DecodePlan& plan) {
  std::set<int32_t> zero_rows;
  const auto units = ItemsOfUnits(options, plan, &zero_rows);
  std::vector<bool> partials(plan.num_partials);
  std::map<int32_t, int32_t> counters;
  const DecodeAttentionShape& shape = options.shape;
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  size_t num_units = 0;
  for (int32_t s = 0; s < static_cast<int32_t>(step.kv_lengths.size()); ++s) {
    const int32_t length = step.query_starts[s + 1] - step.query_starts[s];
    for (int32_t r = step.query_starts[s]; r < step.query_starts[s + 1]; ++r) {
      EXPECT_EQ(zero_rows.contains(r), step.kv_lengths[s] == 0) << r;
    }
    if (step.kv_lengths[s] == 0 || length > shape.query_length_max) continue;
    for (int16_t head = 0; head < shape.num_kv_heads; ++head) {
      for (int32_t row = 0; row < length * group;) {
        const auto found = units.find({step.query_starts[s], head, static_cast<int16_t>(row)});
        ASSERT_NE(found, units.end()) << s << " " << head << " " << row;
        CheckUnit(options, step, s, found->second, &partials, &counters);
        row += found->second.front().num_rows;
        EXPECT_LE(row, length * group);
        ++num_units;
      }
    }
  }
  EXPECT_EQ(num_units, units.size());
  EXPECT_EQ(std::count(partials.begin(), partials.end(), true), plan.num_partials);
  EXPECT_EQ(static_cast<int>(counters.size()), plan.num_counters);
  EXPECT_LE(plan.num_counters, options.grid_size);
  for (const auto& [counter, one] : counters) EXPECT_LT(counter, plan.num_counters);
}

TEST(DecodeAttentionPlan, CoversEveryKeyOnceInBothModes) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    DecodePlanOptions options =
        Options(round % 2 == 0 ? DecodeSplit::kFixed : DecodeSplit::kBalanced);
    options.shape.num_kv_heads = std::vector<int32_t>{1, 2, 8}[random() % 3];
    options.shape.num_heads =
        options.shape.num_kv_heads * std::vector<int32_t>{1, 2, 4, 7, 8, 16, 48}[random() % 7];
    options.shape.head_dim = std::vector<int32_t>{8, 80, 128, 256}[random() % 4];
    options.shape.query_length_max = 1 + static_cast<int32_t>(random() % 8);
    options.shape.window = random() % 3 == 0 ? 1 + static_cast<int32_t>(random() % 700) : 0;
    options.split_tokens = 64 << random() % 4;
    options.grid_size = 1 + static_cast<int32_t>(random() % 300);
    options.run_tiles_min = static_cast<int32_t>(random() % 4);
    Step step;
    const auto num_sequences = static_cast<int32_t>(random() % 20);
    for (int32_t s = 0; s < num_sequences; ++s) {
      const auto length = static_cast<int32_t>(random() % 12);  // Some are prefill's.
      const auto past = static_cast<int32_t>(random() % (random() % 2 == 0 ? 100 : 6000));
      step.Add(length, random() % 5 == 0 ? 0 : length + past);
    }
    SCOPED_TRACE(round);
    CheckPlan(options, step, Plan(options, step));
  }
}

TEST(DecodeAttentionPlan, AnEmptyStepHasEmptyRuns) {
  const DecodePlanOptions options = Options(DecodeSplit::kBalanced);
  const DecodePlan plan = Plan(options, Step());
  ASSERT_EQ(plan.items.size(), 264u);
  for (const DecodeItem& item : plan.items) {
    EXPECT_EQ(item.num_rows, 0);
    EXPECT_EQ(item.next, -1);
  }
}

TEST(DecodeAttentionPlan, BalancedRunsAreEven) {
  struct Case {
    int32_t batch, length, grid_size;
    int64_t run_tiles_max;
  };
  for (const Case& c : {Case{64, 4096, 264, 127}, Case{256, 1024, 264, 127}, Case{1, 4096, 132, 4},
                        Case{1, 32768, 132, 32}, Case{8, 1024, 132, 8}}) {
    DecodePlanOptions options = Options(DecodeSplit::kBalanced);
    options.grid_size = c.grid_size;
    Step step;
    for (int32_t s = 0; s < c.batch; ++s) step.Add(1, c.length);
    const DecodePlan plan = Plan(options, step);
    EXPECT_LE(plan.run_tiles_max, c.run_tiles_max) << c.batch << "x" << c.length;
  }
  // Mixed lengths: one of 100,000 among short ones.
  DecodePlanOptions options = Options(DecodeSplit::kBalanced);
  Step step;
  for (int32_t s = 0; s < 31; ++s) step.Add(1, 100 + s);
  step.Add(1, 100000);
  const DecodePlan plan = Plan(options, step);
  const int64_t tiles = 8 * (31 * 2 + 6 + 1563);
  EXPECT_LE(plan.run_tiles_max, tiles / 264 + 3);
}

TEST(DecodeAttentionPlan, FixedSplitsDoNotDependOnTheBatch) {
  DecodePlanOptions options = Options(DecodeSplit::kFixed);
  const auto splits_of = [&](const Step& step, int32_t row) {
    std::set<int32_t> zero_rows;
    const DecodePlan plan = Plan(options, step);
    return ItemsOfUnits(options, plan, &zero_rows)
        .at({row, int16_t{3}, int16_t{0}})
        .front()
        .num_splits;
  };
  Step alone;
  alone.Add(1, 5000);
  Step crowd;
  for (int32_t s = 0; s < 40; ++s) crowd.Add(1, 300 + 71 * s);
  crowd.Add(1, 5000);
  EXPECT_EQ(splits_of(alone, 0), 20);
  EXPECT_EQ(splits_of(crowd, 40), 20);
}

TEST(DecodeAttentionPlan, RefusesWhatDoesNotFit) {
  DecodePlanOptions options = Options(DecodeSplit::kBalanced);
  Step step;
  step.Add(1, 4096);
  DecodePlan plan;
  options.items_max = 10;
  options.partials_max = 1000;
  EXPECT_FALSE(PlanDecodeAttention(options, step.Input(), &plan));
  options.items_max = 1000;
  options.partials_max = 3;
  EXPECT_FALSE(PlanDecodeAttention(options, step.Input(), &plan));
  options.partials_max = 1000;
  EXPECT_TRUE(PlanDecodeAttention(options, step.Input(), &plan));
}

}  // namespace
}  // namespace baton::kernels
