// How a skinny product is cut over the multiprocessors: pure arithmetic, no CUDA.
//
// The weights [w_rows, k] are cut into tiles of `tile_rows` rows and each tile into chunks of
// `chunk_k` columns. All chunks, tile after tile, form one sequence that is dealt out in equal
// contiguous runs, one a block, so every block streams the same number of bytes whatever the shape.
// A tile that several blocks share is summed in the order of k by the block that comes last.
// The cut does not depend on the number of token rows, nor do the bits of a result.
#ifndef BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_
#define BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

inline constexpr int32_t kSkinnyRowsMax = 64;
inline constexpr int32_t kSkinnyTileRowsMin = 64;
inline constexpr int32_t kSkinnyTileRowsMax = 256;

struct SkinnyLinearShape {
  int32_t rows = 0;  // Token rows, 1 to kSkinnyRowsMax.
  int32_t n = 0;     // Outputs of a row (gated: of gate, or of up).
  int32_t k = 0;
  bool gated = false;
};

// What can be tuned. One configuration serves all row counts; the bench tries others.
struct SkinnyLinearConfig {
  int32_t warpgroups = 2;            // 64 weight rows each: 1, 2 or 4.
  int32_t chunk_boxes = 1;           // Chunk of 64 columns times this: 1 or 2.
  int32_t shared_bytes_max = 0;      // For the ring; 0: the default.
  int32_t l2_promotion_bytes = 256;  // Of weight reads.
};

struct SkinnyLinearPlan {
  SkinnyLinearConfig config;
  int32_t token_tile = 0;  // Rows padded to 8, 16, 32 or 64.
  int32_t tile_rows = 0;   // 64 * warpgroups
  int32_t num_tiles = 0;
  int32_t chunks_per_tile = 0;
  int32_t num_blocks = 0;
  int32_t num_stages = 0;
  size_t shared_bytes = 0;
  size_t workspace_bytes = 0;  // Two partial tiles a block.
};

// REQUIRES: SkinnyLinearSupports(shape), num_sms > 0.
SkinnyLinearPlan PlanSkinnyLinear(const SkinnyLinearShape& shape, const SkinnyLinearConfig& config,
                                  int32_t num_sms);

// First chunk of a block's run, and the block whose run holds a chunk.
constexpr int64_t SkinnyRunBegin(int64_t num_chunks, int32_t num_blocks, int64_t block) {
  return num_chunks * block / num_blocks;
}
constexpr int64_t SkinnyRunOwner(int64_t num_chunks, int32_t num_blocks, int64_t chunk) {
  return ((chunk + 1) * num_blocks - 1) / num_chunks;
}

// 1 to 64 rows, any n, k a multiple of 8; gated: n a multiple of 8.
bool SkinnyLinearSupports(const SkinnyLinearShape& shape);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_
