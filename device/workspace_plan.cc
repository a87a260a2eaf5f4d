#include "device/workspace_plan.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
namespace baton {
namespace {

struct Lifetime {
  int32_t first = -1;  // Index of operation; -1: never used.
  int32_t last = -1;
};

std::vector<Lifetime> Lifetimes(const OpList& list) {
  std::vector<Lifetime> out(list.values.size());
  for (size_t i = 0; i < list.ops.size(); ++i) {
    const OpValues values = ValuesOf(list.ops[i]);
    const auto touch = [&](ValueId id) {
      Lifetime& lifetime = out[static_cast<size_t>(id.value)];
      if (lifetime.first < 0) lifetime.first = static_cast<int32_t>(i);
      lifetime.last = static_cast<int32_t>(i);
    };
    for (const ValueId id : values.reads) touch(id);
    for (const ValueId id : values.writes) touch(id);
  }
  return out;
}

}  // namespace

WorkspacePlan PlanWorkspace(const OpList& list, int64_t num_tokens, int64_t num_samples,
                            absl::Span<const int64_t> row_bytes) {
  CHECK_EQ(row_bytes.size(), list.values.size());
  const std::vector<Lifetime> lifetimes = Lifetimes(list);
  WorkspacePlan plan;
  plan.offsets.assign(list.values.size(), -1);
  std::vector<int64_t> sizes;
  for (size_t v = 0; v < list.values.size(); ++v) {
    const int64_t rows = list.values[v].rows == ValueRows::kTokens ? num_tokens : num_samples;
    const int64_t bytes = rows * row_bytes[v];
    sizes.push_back((bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
  }
  std::vector<size_t> order(list.values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return lifetimes[a].first != lifetimes[b].first ? lifetimes[a].first < lifetimes[b].first
                                                    : a < b;
  });
  std::vector<size_t> placed;  // By offset.
  for (const size_t v : order) {
    if (lifetimes[v].first < 0) continue;
    int64_t offset = 0;
    for (const size_t other : placed) {
      const bool alive_together = lifetimes[v].first <= lifetimes[other].last &&
                                  lifetimes[other].first <= lifetimes[v].last;
      if (!alive_together) continue;
      if (offset + sizes[v] <= plan.offsets[other]) break;
      offset = std::max(offset, plan.offsets[other] + sizes[other]);
    }
    plan.offsets[v] = offset;
    plan.bytes = std::max(plan.bytes, offset + sizes[v]);
    const auto at = std::upper_bound(placed.begin(), placed.end(), v, [&](size_t a, size_t b) {
      return plan.offsets[a] < plan.offsets[b];
    });
    placed.insert(at, v);
  }
  return plan;
}

}  // namespace baton
