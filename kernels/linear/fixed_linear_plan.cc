#include "kernels/linear/fixed_linear_plan.h"

#include <algorithm>

#include "kernels/linear/skinny_linear_plan.h"

namespace baton::kernels {
namespace {

constexpr int32_t kGroup = 12;  // Token tiles.

constexpr int32_t DivideUp(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Estimates in clocks, fitted to times of Llama-3-8B's shapes on one H200: good enough to choose
// among tiles and between the two kernels.
int64_t Clocks(const FixedLinearShape& shape, const FixedLinearPlan& plan, int32_t num_sms) {
  constexpr int64_t kLaunch = 4000;
  constexpr int64_t kTile = 10000;  // Its beginning and end.
  constexpr int64_t kBytesOfClock = 16;
  const int64_t chunk = plan.tokens == 64 ? 860 : plan.tokens == 128 ? 1120 : 1680;
  const int64_t units = int64_t{plan.num_token_tiles} * plan.num_weight_units;
  const int64_t turns = DivideUp(static_cast<int32_t>(units), plan.num_blocks / plan.cluster);
  const int64_t products = turns * (kTile + chunk * DivideUp(shape.k, kSkinnyChunkColumns));
  const int64_t weights = int64_t{shape.n} * (shape.gated ? 2 : 1) * shape.k * 2;
  return kLaunch + std::max(products, weights / (int64_t{num_sms} * kBytesOfClock));
}

// Of one launch: reading weights, or with 256 tokens the products, and the exchange of parts.
int64_t SkinnyClocks(const FixedLinearShape& shape, int32_t num_sms) {
  const SkinnyLinearPlan plan =
      PlanSkinnyLinear({shape.rows, shape.n, shape.k, shape.gated}, {}, num_sms);
  const bool wide = plan.token_tile > 128;
  const int64_t chunks = int64_t{plan.num_tiles} * plan.chunks_per_tile / plan.num_blocks;
  return chunks * (wide ? 2800 : 1800) + (wide ? 32000 : 22000);
}

}  // namespace

bool FixedLinearSupports(const FixedLinearShape& shape) {
  return shape.rows >= 1 && SkinnyLinearSupports({1, shape.n, shape.k, shape.gated});
}

FixedLinearPlan CutFixedLinear(const FixedLinearShape& shape, int32_t tokens, int32_t cluster,
                               int32_t num_sms) {
  FixedLinearPlan plan = {.tokens = tokens, .cluster = cluster};
  const int32_t w_rows = shape.n * (shape.gated ? 2 : 1);
  plan.num_token_tiles = DivideUp(shape.rows, tokens);
  plan.num_weight_units = DivideUp(DivideUp(w_rows, kSkinnyTileRows), cluster);
  plan.group = std::min(plan.num_token_tiles, kGroup);
  const int64_t units = int64_t{plan.num_token_tiles} * plan.num_weight_units;
  plan.num_blocks = static_cast<int32_t>(std::min<int64_t>(units, num_sms / cluster)) * cluster;
  return plan;
}

FixedLinearPlan PlanFixedLinear(const FixedLinearShape& shape, int32_t num_sms) {
  FixedLinearPlan best;
  int64_t best_clocks = 0;
  for (const int32_t tokens : {192, 128, 64}) {
    // Pairs take less power, which bounds large products; few tiles end sooner one by one.
    const int32_t cluster = tokens == 192 || (tokens == 128 && shape.rows > 1024) ? 2 : 1;
    const FixedLinearPlan plan = CutFixedLinear(shape, tokens, cluster, num_sms);
    const int64_t clocks = Clocks(shape, plan, num_sms);
    if (best_clocks != 0 && clocks >= best_clocks) continue;
    best_clocks = clocks;
    best = plan;
  }
  return best;
}

bool SkinnyLinearIsFaster(const FixedLinearShape& shape, int32_t num_sms) {
  if (shape.rows > kSkinnyRowsMax) return false;
  const int64_t fixed = Clocks(shape, PlanFixedLinear(shape, num_sms), num_sms);
  // In a step the skinny kernel gains more from starting early.
  return SkinnyClocks(shape, num_sms) <= fixed + fixed / 10;
}

}  // namespace baton::kernels
