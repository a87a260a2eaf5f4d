// Packing of steps, on the host: no GPU needed.
#include "device/cuda/step_block.h"

#include <cstring>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"

namespace baton {
namespace {

template <typename T>
std::vector<T> Read(const std::vector<std::byte>& block, size_t offset, size_t count) {
  std::vector<T> out(count);
  std::memcpy(out.data(), block.data() + offset, count * sizeof(T));
  return out;
}

// Two sequences: three tokens at 0 to 2, one token at 9.
StepMeta TwoSequences() {
  StepMeta meta;
  meta.token_source = {5, 6, 7, -1};
  meta.positions = {0, 1, 2, 9};
  meta.kv_slots = {64, 65, 66, 137};
  meta.query_starts = {0, 3, 4};
  meta.block_table_starts = {0, 1, 3};
  meta.block_tables = {1, 4, 2};
  meta.sample_rows = {2, 3};
  meta.sampling = {{.temperature = 0.5f}, {.top_k = 3}};
  return meta;
}

TEST(StepBlock, OffsetsAreAlignedAndDistinct) {
  const StepOffsets o = PlanStepBlock(
      {.tokens = 300, .sequences = 7, .samples = 7, .prefill_work = 33, .decode_plan_bytes = 160});
  const std::set<size_t> offsets = {o.token_source, o.positions,   o.kv_slots,
                                    o.query_starts, o.kv_lengths,  o.block_table_starts,
                                    o.sample_rows,  o.sampling,    o.num_prefill_work,
                                    o.prefill_work, o.decode_plan, o.block_tables};
  EXPECT_EQ(offsets.size(), 12u);
  for (const size_t offset : offsets) EXPECT_EQ(offset % 256, 0u);
  EXPECT_EQ(*offsets.rbegin(), o.block_tables);
}

TEST(StepBlock, PadsWithTokensThatTouchNothing) {
  const StepMeta meta = TwoSequences();
  const StepCounts counts{.tokens = 6, .sequences = 4, .samples = 6};
  std::vector<std::byte> block(StepBlockBytes(counts, meta.block_tables.size()), std::byte{0xEE});
  WriteStepBlock(meta, counts, block.data());
  const StepOffsets o = PlanStepBlock(counts);
  EXPECT_EQ(Read<int32_t>(block, o.token_source, 6), (std::vector<int32_t>{5, 6, 7, -1, 0, 0}));
  EXPECT_EQ(Read<int32_t>(block, o.positions, 6), (std::vector<int32_t>{0, 1, 2, 9, 0, 0}));
  EXPECT_EQ(Read<int64_t>(block, o.kv_slots, 6), (std::vector<int64_t>{64, 65, 66, 137, -1, -1}));
  EXPECT_EQ(Read<int32_t>(block, o.query_starts, 5), (std::vector<int32_t>{0, 3, 4, 5, 6}));
  EXPECT_EQ(Read<int32_t>(block, o.kv_lengths, 4), (std::vector<int32_t>{3, 10, 0, 0}));
  EXPECT_EQ(Read<int32_t>(block, o.block_table_starts, 5), (std::vector<int32_t>{0, 1, 3, 3, 3}));
  EXPECT_EQ(Read<int32_t>(block, o.sample_rows, 6), (std::vector<int32_t>{2, 3, 5, 5, 5, 5}));
  EXPECT_EQ(Read<int32_t>(block, o.block_tables, 3), (std::vector<int32_t>{1, 4, 2}));
  const auto sampling = Read<kernels::SampleParams>(block, o.sampling, 6);
  EXPECT_EQ(sampling[0].temperature, 0.5f);
  EXPECT_EQ(sampling[1].top_k, 3);
  EXPECT_EQ(sampling[5].temperature, 0.0f);
}

TEST(StepBlock, ExactCountsNeedNoPadding) {
  const StepMeta meta = TwoSequences();
  const StepCounts counts{.tokens = 4, .sequences = 2, .samples = 2};
  std::vector<std::byte> block(StepBlockBytes(counts, 3));
  WriteStepBlock(meta, counts, block.data());
  EXPECT_EQ(Read<int32_t>(block, PlanStepBlock(counts).query_starts, 3),
            (std::vector<int32_t>{0, 3, 4}));
}

}  // namespace
}  // namespace baton
