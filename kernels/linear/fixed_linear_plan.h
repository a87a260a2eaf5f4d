// How a product of many rows is cut into tiles: pure arithmetic, no CUDA.
//
// A tile is 128 weight rows by `tokens` token rows. A unit is what a cluster of blocks makes at a
// time: `cluster` tiles of consecutive weight rows that share their tokens. Units are dealt to the
// clusters in turns, in the order of launch/grouped_units.h: rows are token tiles, columns are
// weight units.
#ifndef BATON_KERNELS_LINEAR_FIXED_LINEAR_PLAN_H_
#define BATON_KERNELS_LINEAR_FIXED_LINEAR_PLAN_H_

#include <cstdint>

namespace baton::kernels {

struct FixedLinearShape {
  int32_t rows = 0;
  int32_t n = 0;  // Outputs of a row (gated: of gate, or of up).
  int32_t k = 0;
  bool gated = false;
};

struct FixedLinearPlan {
  int32_t tokens = 0;   // Of a tile: 64, 128 or 192.
  int32_t cluster = 0;  // Blocks of a cluster, 1 or 2.
  int32_t num_token_tiles = 0;
  int32_t num_weight_units = 0;
  int32_t group = 0;  // Token tiles.
  int32_t num_blocks = 0;
};

// REQUIRES: FixedLinearSupports(shape), num_sms > 1.
FixedLinearPlan PlanFixedLinear(const FixedLinearShape& shape, int32_t num_sms);
// The same with tiles of the caller's choice.
FixedLinearPlan CutFixedLinear(const FixedLinearShape& shape, int32_t tokens, int32_t cluster,
                               int32_t num_sms);

// Whether SkinnyLinear, which takes up to kSkinnyRowsMax rows, makes the same product sooner.
bool SkinnyLinearIsFaster(const FixedLinearShape& shape, int32_t num_sms);

// Rows from 1, any n, k a multiple of 8; gated: n a multiple of 8.
bool FixedLinearSupports(const FixedLinearShape& shape);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_FIXED_LINEAR_PLAN_H_
