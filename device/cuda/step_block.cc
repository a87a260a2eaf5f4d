#include "device/cuda/step_block.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"

namespace baton {
namespace {

constexpr size_t kAlignment = 256;

// Hands out aligned pieces one after the other.
class Placer {
 public:
  template <typename T>
  size_t Place(int64_t count) {
    const size_t at = end_;
    end_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }

 private:
  size_t end_ = 0;
};

template <typename T>
T* At(std::byte* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

template <typename T>
void Write(std::byte* block, size_t offset, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(block + offset, values.data(), values.size() * sizeof(T));
}

template <typename T>
void Pad(std::byte* block, size_t offset, size_t begin, int64_t end, T value) {
  T* array = At<T>(block, offset);
  std::fill(array + begin, array + std::max<int64_t>(static_cast<int64_t>(begin), end), value);
}

// Of a sequence of the step, its tokens of this step included.
int32_t KvLength(const StepMeta& meta, size_t sequence) {
  const int32_t begin = meta.query_starts[sequence];
  const int32_t end = meta.query_starts[sequence + 1];
  return end > begin ? meta.positions[static_cast<size_t>(end) - 1] + 1 : 0;
}

}  // namespace

StepOffsets PlanStepBlock(const StepCounts& counts) {
  Placer placer;
  StepOffsets o;
  o.token_source = placer.Place<int32_t>(counts.tokens);
  o.positions = placer.Place<int32_t>(counts.tokens);
  o.kv_slots = placer.Place<int64_t>(counts.tokens);
  o.query_starts = placer.Place<int32_t>(counts.sequences + 1);
  o.kv_lengths = placer.Place<int32_t>(counts.sequences);
  o.block_table_starts = placer.Place<int32_t>(counts.sequences + 1);
  o.sample_rows = placer.Place<int32_t>(counts.samples);
  o.sampling = placer.Place<kernels::SampleParams>(counts.samples);
  o.num_prefill_work = placer.Place<int32_t>(1);
  o.prefill_work = placer.Place<kernels::PrefillWork>(counts.prefill_work);
  o.decode_plan = placer.Place<std::byte>(counts.decode_plan_bytes);
  o.block_tables = placer.Place<int32_t>(0);
  return o;
}

size_t StepBlockBytes(const StepCounts& counts, size_t num_table_entries) {
  return PlanStepBlock(counts).block_tables + num_table_entries * sizeof(int32_t);
}

void SequenceLengths(const StepMeta& meta, std::vector<int32_t>* query_lengths,
                     std::vector<int32_t>* kv_lengths) {
  query_lengths->clear();
  kv_lengths->clear();
  for (size_t s = 0; s + 1 < meta.query_starts.size(); ++s) {
    query_lengths->push_back(meta.query_starts[s + 1] - meta.query_starts[s]);
    kv_lengths->push_back(KvLength(meta, s));
  }
}

void WriteStepBlock(const StepMeta& meta, const StepCounts& counts, std::byte* block) {
  const size_t tokens = meta.positions.size();
  const size_t sequences = meta.query_starts.size() - 1;
  const size_t samples = meta.sample_rows.size();
  const auto padding_tokens = counts.tokens - static_cast<int32_t>(tokens);
  const auto padding_sequences = counts.sequences - static_cast<int32_t>(sequences);
  CHECK(padding_tokens >= 0 && padding_sequences >= 0) << tokens << ", " << sequences;
  CHECK(static_cast<size_t>(counts.samples) >= samples) << samples;
  CHECK_EQ(padding_tokens, padding_sequences);
  const StepOffsets o = PlanStepBlock(counts);
  Write(block, o.token_source, meta.token_source);
  Pad<int32_t>(block, o.token_source, tokens, counts.tokens, 0);
  Write(block, o.positions, meta.positions);
  Pad<int32_t>(block, o.positions, tokens, counts.tokens, 0);
  Write(block, o.kv_slots, meta.kv_slots);
  Pad<int64_t>(block, o.kv_slots, tokens, counts.tokens, -1);
  Write(block, o.query_starts, meta.query_starts);
  for (int32_t i = 1; i <= padding_sequences; ++i) {
    At<int32_t>(block, o.query_starts)[sequences + static_cast<size_t>(i)] =
        meta.query_starts.back() + i;
  }
  for (size_t s = 0; s < sequences; ++s) At<int32_t>(block, o.kv_lengths)[s] = KvLength(meta, s);
  Pad<int32_t>(block, o.kv_lengths, sequences, counts.sequences, 0);
  Write(block, o.block_table_starts, meta.block_table_starts);
  Pad<int32_t>(block, o.block_table_starts, sequences + 1, counts.sequences + 1,
               meta.block_table_starts.back());
  Write(block, o.sample_rows, meta.sample_rows);
  Pad<int32_t>(block, o.sample_rows, samples, counts.samples, std::max(counts.tokens - 1, 0));
  Write(block, o.sampling, meta.sampling);
  Pad<kernels::SampleParams>(block, o.sampling, samples, counts.samples, {});
  Write(block, o.block_tables, meta.block_tables);
}

}  // namespace baton
