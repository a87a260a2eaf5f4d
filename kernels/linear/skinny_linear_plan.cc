#include "kernels/linear/skinny_linear_plan.h"

#include <algorithm>

namespace baton::kernels {
namespace {

// The ring begins at a multiple of 1024.
constexpr size_t kAlignmentBytes = 1024;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int32_t SkinnyTokenTile(int32_t rows) {
  int32_t tile = 8;
  while (tile < rows) tile *= 2;
  return tile;
}

bool SkinnyLinearSupports(const SkinnyLinearShape& shape) {
  return shape.rows >= 1 && shape.rows <= kSkinnyRowsMax && shape.n >= 1 && shape.k >= 8 &&
         shape.k % 8 == 0 && (!shape.gated || (shape.n % 8 == 0 && shape.n <= INT32_MAX / 2));
}

SkinnyLinearPlan PlanSkinnyLinear(const SkinnyLinearShape& shape, const SkinnyLinearConfig& config,
                                  int32_t num_sms) {
  SkinnyLinearPlan plan;
  plan.token_tile = SkinnyTokenTile(shape.rows);
  const int64_t w_rows = int64_t{shape.n} * (shape.gated ? 2 : 1);
  plan.num_tiles = static_cast<int32_t>(CeilDiv(w_rows, kSkinnyTileRows));
  plan.chunks_per_tile = static_cast<int32_t>(CeilDiv(shape.k, kSkinnyChunkColumns));
  const int64_t num_chunks = int64_t{plan.num_tiles} * plan.chunks_per_tile;
  plan.num_blocks = static_cast<int32_t>(std::min<int64_t>(num_sms, num_chunks));
  const int32_t stage_bytes =
      (kSkinnyTileRows + plan.token_tile) * SkinnyStageColumns(plan.token_tile) * 2;
  plan.num_stages = std::clamp(config.ring_bytes / stage_bytes, 2, kSkinnyStagesMax);
  plan.shared_bytes = static_cast<size_t>(plan.num_stages) * stage_bytes + kAlignmentBytes;
  plan.workspace_bytes =
      size_t{1} * plan.num_blocks * kSkinnyTileRows * plan.token_tile * sizeof(float);
  return plan;
}

}  // namespace baton::kernels
