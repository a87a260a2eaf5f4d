// What differs from step to step, packed into one block that travels to the GPU in one copy.
// Kernels read it there, so that a captured graph serves every step of its size.
//
// Order of the block: arrays whose sizes follow from the counts first, block tables, whose size
// varies from step to step, last; so offsets depend on the counts only.
// Thread rule: pure functions.
#ifndef BATON_DEVICE_CUDA_STEP_BLOCK_H_
#define BATON_DEVICE_CUDA_STEP_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "device/device.h"

namespace baton {

// Longest query of a sequence that the decode form of attention takes (speculation will raise it).
inline constexpr int32_t kShortQueryMax = 1;

// Sizes of the arrays, padding included.
struct StepCounts {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t samples = 0;
  int32_t prefill_work = 0;       // Items of the list of long queries.
  int32_t decode_plan_bytes = 0;  // Of the plan of short queries; a multiple of 16.

  friend bool operator==(const StepCounts&, const StepCounts&) = default;
};

// Byte offsets; each aligned to 256.
struct StepOffsets {
  size_t token_source = 0;        // int32 [tokens]
  size_t positions = 0;           // int32 [tokens]
  size_t kv_slots = 0;            // int64 [tokens], -1: no KV is written
  size_t query_starts = 0;        // int32 [sequences + 1]
  size_t kv_lengths = 0;          // int32 [sequences], this step's tokens included; 0: padding
  size_t block_table_starts = 0;  // int32 [sequences + 1]
  size_t sample_rows = 0;         // int32 [samples]
  size_t sampling = 0;            // kernels::SampleParams [samples]
  size_t num_prefill_work = 0;    // int32 [1]
  size_t prefill_work = 0;        // kernels::PrefillWork [prefill_work]
  size_t decode_plan = 0;
  size_t block_tables = 0;  // int32 [...], to the end
};
StepOffsets PlanStepBlock(const StepCounts& counts);

// Of a whole block with so many block table entries.
size_t StepBlockBytes(const StepCounts& counts, size_t num_table_entries);

// Writes everything of `meta` but the two attention plans to `block`, padded to the counts: padding
// tokens are token 0 at position 0 that writes no KV and belongs to a sequence without KV (one a
// token); padding samples take the last row greedily.
// REQUIRES: the counts hold the step; padding tokens and sequences are equally many.
void WriteStepBlock(const StepMeta& meta, const StepCounts& counts, std::byte* block);

// Query and KV lengths of the step's sequences.
void SequenceLengths(const StepMeta& meta, std::vector<int32_t>* query_lengths,
                     std::vector<int32_t>* kv_lengths);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_STEP_BLOCK_H_
