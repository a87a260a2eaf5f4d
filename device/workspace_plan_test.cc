// Values alive together never overlap, for random lists; and memory is in fact shared.
#include "device/workspace_plan.h"

#include <random>

#include "gtest/gtest.h"

namespace baton {
namespace {

struct Extent {
  int32_t first = -1;
  int32_t last = -1;
};

std::vector<Extent> Alive(const OpList& list) {
  std::vector<Extent> out(list.values.size());
  for (size_t i = 0; i < list.ops.size(); ++i) {
    OpValues values = ValuesOf(list.ops[i]);
    values.reads.insert(values.reads.end(), values.writes.begin(), values.writes.end());
    for (const ValueId id : values.reads) {
      Extent& e = out[static_cast<size_t>(id.value)];
      if (e.first < 0) e.first = static_cast<int32_t>(i);
      e.last = static_cast<int32_t>(i);
    }
  }
  return out;
}

std::vector<int64_t> FloatRows(const OpList& list) {
  std::vector<int64_t> bytes;
  for (const ValueSpec& spec : list.values) bytes.push_back(spec.cols * 4);
  return bytes;
}

void ExpectNoOverlap(const OpList& list, const WorkspacePlan& plan, int64_t tokens,
                     int64_t samples) {
  const std::vector<Extent> alive = Alive(list);
  const auto size = [&](size_t v) {
    const ValueSpec& spec = list.values[v];
    return (spec.rows == ValueRows::kTokens ? tokens : samples) * spec.cols * 4;
  };
  for (size_t a = 0; a < list.values.size(); ++a) {
    if (alive[a].first < 0) {
      EXPECT_EQ(plan.offsets[a], -1);
      continue;
    }
    EXPECT_GE(plan.offsets[a], 0);
    EXPECT_EQ(plan.offsets[a] % kWorkspaceAlignment, 0);
    EXPECT_LE(plan.offsets[a] + size(a), plan.bytes);
    for (size_t b = 0; b < a; ++b) {
      if (alive[b].first < 0 || alive[a].first > alive[b].last || alive[b].first > alive[a].last) {
        continue;
      }
      EXPECT_TRUE(plan.offsets[a] + size(a) <= plan.offsets[b] ||
                  plan.offsets[b] + size(b) <= plan.offsets[a])
          << a << " and " << b;
    }
  }
}

TEST(PlanWorkspace, NeverOverlapsValuesThatAreAliveTogether) {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    OpList list;
    const size_t num_values = 2 + rng() % 20;
    for (size_t i = 0; i < num_values; ++i) {
      list.NewValue(rng() % 2 == 0 ? ValueRows::kTokens : ValueRows::kSamples,
                    1 + static_cast<int64_t>(rng() % 300));
    }
    const size_t num_ops = rng() % 30;
    for (size_t i = 0; i < num_ops; ++i) {
      const auto pick = [&] { return ValueId(static_cast<int32_t>(rng() % num_values)); };
      list.ops.push_back(LinearOp{pick(), nullptr, nullptr, LinearEpilogue::kNone, pick()});
    }
    ExpectNoOverlap(list, PlanWorkspace(list, 17, 3, FloatRows(list)), 17, 3);
  }
}

TEST(PlanWorkspace, AChainOfLayersNeedsTheMemoryOfOne) {
  OpList list;
  std::vector<ValueId> values;
  for (int i = 0; i < 100; ++i) values.push_back(list.NewValue(ValueRows::kTokens, 64));
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    list.ops.push_back(LinearOp{values[i], nullptr, nullptr, LinearEpilogue::kNone, values[i + 1]});
  }
  EXPECT_EQ(PlanWorkspace(list, 16, 1, FloatRows(list)).bytes, 2 * 16 * 64 * 4);
}

}  // namespace
}  // namespace baton
