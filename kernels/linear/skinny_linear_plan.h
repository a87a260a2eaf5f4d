// How a skinny product is cut over the multiprocessors: pure arithmetic, no CUDA.
//
// The weights [w_rows, k] are cut into tiles of 128 rows and each tile into chunks of 128 columns.
// All chunks, tile after tile, form one sequence that is dealt out in equal contiguous runs, one a
// block, so every block streams the same number of bytes whatever the shape. A tile that several
// blocks share is summed in the order of k by the block that has its beginning. The cut does not
// depend on the number of token rows, nor do the bits of a result.
#ifndef BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_
#define BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

inline constexpr int32_t kSkinnyRowsMax = 256;
inline constexpr int32_t kSkinnyTileRows = 128;
inline constexpr int32_t kSkinnyChunkColumns = 128;
inline constexpr int32_t kSkinnyStagesMax = 8;
// 8, 16, 32, 64, 128 or 256: `rows` padded.
int32_t SkinnyTokenTile(int32_t rows);
// Of k, that a stage of the ring holds: a chunk, or half of one where tokens take much of it.
constexpr int32_t SkinnyStageColumns(int32_t token_tile) { return token_tile > 64 ? 64 : 128; }

struct SkinnyLinearShape {
  int32_t rows = 0;  // Token rows, 1 to kSkinnyRowsMax.
  int32_t n = 0;     // Outputs of a row (gated: of gate, or of up).
  int32_t k = 0;
  bool gated = false;
};

// What can be tuned without a change of bits; the defaults measured best.
struct SkinnyLinearConfig {
  // Of chunks in flight, at most. Half of it, which lets blocks of two kernels share a
  // multiprocessor, streams 5 % slower.
  int32_t ring_bytes = 200 * 1024;
  int32_t l2_promotion_bytes = 128;  // Of weight reads.
};

struct SkinnyLinearPlan {
  int32_t token_tile = 0;  // Rows padded to 8, 16, 32, 64, 128 or 256.
  int32_t num_tiles = 0;
  int32_t chunks_per_tile = 0;
  int32_t num_blocks = 0;
  int32_t num_stages = 0;
  size_t shared_bytes = 0;
  size_t workspace_bytes = 0;  // One partial tile a block.
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

// 1 to 256 rows, any n, k a multiple of 8; gated: n a multiple of 8.
bool SkinnyLinearSupports(const SkinnyLinearShape& shape);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SKINNY_LINEAR_PLAN_H_
