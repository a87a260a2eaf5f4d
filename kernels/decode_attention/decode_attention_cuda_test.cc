// The kernel against softmax in double precision over scattered blocks whose unused slots hold NaN;
// and that in fixed mode the bits of a row depend on the row and its keys only.
#include "kernels/decode_attention/decode_attention_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/decode_attention/decode_attention_plan.h"
#include "kernels/launch/cuda_testing.h"

namespace baton::kernels::testing {
namespace {

// Query, keys and values of a sequence follow from `seed` and the positions alone.
struct Sequence {
  int32_t query_length = 1;
  int32_t kv_length = 1;  // 0: padding.
  uint64_t seed = 0;
};

struct Problem {
  DecodeAttentionShape shape = {};
  HalfType type = HalfType::kBF16;
  int32_t block_tokens = 64;
  float softcap = 0;
  DecodeSplit split = DecodeSplit::kBalanced;
  int32_t split_tokens = 256;
  int32_t grid_size = 0;  // 0: DecodeAttentionGrid.
  int32_t run_tiles_min = 1;
  DecodeAttentionTuning tuning = {};
  std::vector<Sequence> sequences = {};

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
  int32_t Group() const { return shape.num_heads / shape.num_kv_heads; }
  int32_t RowElements() const { return shape.num_heads * shape.head_dim; }
};

// Float values, exact in the 16-bit type, of one sequence.
struct SequenceData {
  std::vector<float> q;  // [query_length, num_heads, head_dim]
  std::vector<float> k;  // [kv_length, num_kv_heads, head_dim]
  std::vector<float> v;
};

SequenceData MakeData(const Problem& p, const Sequence& s) {
  SequenceData data;
  if (s.kv_length == 0) {
    data.q.assign(static_cast<size_t>(s.query_length) * p.RowElements(), 1.0f);
    return data;
  }
  for (int32_t i = 0; i < s.query_length; ++i) {
    const auto position = static_cast<uint64_t>(s.kv_length - s.query_length + i);
    const std::vector<float> row =
        RandomHalves(p.type, static_cast<size_t>(p.RowElements()), 1, s.seed * 100003 + position);
    data.q.insert(data.q.end(), row.begin(), row.end());
  }
  const size_t count = static_cast<size_t>(s.kv_length) * p.shape.num_kv_heads * p.shape.head_dim;
  data.k = RandomHalves(p.type, count, 1, s.seed * 7 + 1);
  data.v = RandomHalves(p.type, count, 1, s.seed * 7 + 2);
  return data;
}

// One row of one head in double precision.
std::vector<float> Reference(const Problem& p, const Sequence& s, const SequenceData& data,
                             int32_t row, int32_t head) {
  const int32_t dim = p.shape.head_dim;
  const int32_t position = s.kv_length - s.query_length + row;
  const int32_t begin = p.shape.window > 0 ? std::max(0, position - p.shape.window + 1) : 0;
  const float* q = &data.q[(static_cast<size_t>(row) * p.shape.num_heads + head) * dim];
  const auto key = [&](const std::vector<float>& x, int32_t j) {
    return &x[(static_cast<size_t>(j) * p.shape.num_kv_heads + head / p.Group()) * dim];
  };
  std::vector<double> scores;
  double largest = -INFINITY;
  for (int32_t j = begin; j <= position; ++j) {
    double dot = 0;
    for (int32_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * key(data.k, j)[d];
    dot *= p.Scale();
    if (p.softcap > 0) dot = p.softcap * std::tanh(dot / p.softcap);
    scores.push_back(dot);
    largest = std::max(largest, dot);
  }
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(dim));
  for (int32_t j = begin; j <= position; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j - begin)] - largest);
    sum += weight;
    for (int32_t d = 0; d < dim; ++d) out[static_cast<size_t>(d)] += weight * key(data.v, j)[d];
  }
  std::vector<float> result;
  for (const double x : out) result.push_back(static_cast<float>(x / sum));
  return result;
}

// The step on the device: a pool of two layers, of which the second is used, blocks in random
// order.
class Step {
 public:
  static constexpr int32_t kLayers = 2;
  static constexpr uint16_t kPoison = 0xFFFF;

  explicit Step(const Problem& p) : p_(p) {
    for (const Sequence& s : p.sequences) data_.push_back(MakeData(p, s));
    LayOut();
    FillPool();
  }

  const std::vector<SequenceData>& data() const { return data_; }
  int32_t QueryStart(size_t s) const { return query_starts_[s]; }
  int32_t out_stride() const { return p_.RowElements() + 16; }

  // out [num_tokens, out_stride], bits. Launches twice: the second must find the counters zero.
  std::vector<uint16_t> Run(LaunchOrder order = LaunchOrder::kAfter) {
    DecodePlanOptions options = Options();
    DecodePlan plan;
    EXPECT_TRUE(PlanDecodeAttention(options, PlanInput(), &plan));
    const DeviceArray<DecodeItem> items(plan.items);
    const DeviceArray<int32_t> tables(tables_);
    const DeviceArray<uint16_t> pool(pool_);
    const DeviceArray<uint16_t> q(q_);
    DeviceArray<uint16_t> out(static_cast<size_t>(query_starts_.back()) * out_stride());
    const size_t counter_bytes = DecodeAttentionCounterBytes(options.grid_size);
    DeviceArray<uint8_t> workspace(
        DecodeAttentionWorkspaceBytes(p_.shape, options.grid_size, plan.num_partials));
    std::vector<uint8_t> zero(workspace.size(), 0xFF);
    std::fill_n(zero.begin(), counter_bytes, 0);
    workspace.CopyFrom(zero);
    DecodeAttentionParams params;
    params.q = q.data();
    params.q_stride = q_stride();
    params.out = out.data();
    params.out_stride = out_stride();
    params.kv = Kv(pool.data());
    params.shape = p_.shape;
    params.scale = p_.Scale();
    params.softcap = p_.softcap;
    params.split_tokens = p_.split == DecodeSplit::kFixed ? p_.split_tokens : 0;
    params.items = items.data();
    params.block_tables = tables.data();
    params.grid_size = options.grid_size;
    params.workspace = workspace.data();
    params.partials_max = plan.num_partials;
    params.tuning = p_.tuning;
    params.metadata_is_early = order == LaunchOrder::kOverlapped;
    const TestStream stream;
    EXPECT_EQ(DecodeAttention(params, stream.get(), order), KernelStatus::kOk);
    stream.Synchronize();
    const std::vector<uint16_t> first = out.ToHost();
    EXPECT_EQ(DecodeAttention(params, stream.get(), order), KernelStatus::kOk);
    EXPECT_EQ(DecodeAttention(params, stream.get(), order), KernelStatus::kOk);
    stream.Synchronize();
    EXPECT_EQ(first, out.ToHost()) << "three launches, different results";
    return first;
  }

 private:
  int32_t q_stride() const { return p_.RowElements() + 8; }
  int64_t HeadElements() const { return int64_t{2} * p_.block_tokens * p_.shape.head_dim; }
  int64_t LayerElements() const { return HeadElements() * p_.shape.num_kv_heads; }

  DecodePlanInput PlanInput() const {
    return {.query_starts = query_starts_,
            .kv_lengths = kv_lengths_,
            .block_table_starts = table_starts_};
  }

  DecodePlanOptions Options() const {
    DecodePlanOptions options;
    options.shape = p_.shape;
    options.grid_size = p_.grid_size > 0 ? p_.grid_size : DecodeAttentionGrid(p_.shape, p_.tuning);
    options.split = p_.split;
    options.split_tokens = p_.split_tokens;
    options.run_tiles_min = p_.run_tiles_min;
    const auto num_sequences = static_cast<int32_t>(p_.sequences.size());
    int64_t tokens = 0;
    for (const int32_t length : kv_lengths_) tokens += length;
    options.items_max = DecodeItemsMax(options, num_sequences);
    options.partials_max = DecodePartialsMax(options, num_sequences, tokens);
    return options;
  }

  PagedKv16 Kv(uint16_t* base) const {
    PagedKv16 kv;
    kv.base = base;
    kv.block_stride = LayerElements() * kLayers;
    kv.layer_offset = LayerElements();
    kv.head_stride = HeadElements();
    kv.value_offset = HeadElements() / 2;
    while ((1 << kv.block_tokens_log2) < p_.block_tokens) ++kv.block_tokens_log2;
    kv.head_dim = p_.shape.head_dim;
    kv.num_kv_heads = p_.shape.num_kv_heads;
    kv.num_blocks = num_blocks_;
    kv.type = p_.type;
    return kv;
  }

  void LayOut() {
    for (size_t s = 0; s < p_.sequences.size(); ++s) {
      const Sequence& sequence = p_.sequences[s];
      kv_lengths_.push_back(sequence.kv_length);
      for (int32_t i = 0; i < sequence.query_length; ++i) {
        const auto* row = &data_[s].q[static_cast<size_t>(i) * p_.RowElements()];
        const std::vector<uint16_t> bits =
            HalvesFromFloats(p_.type, absl::MakeConstSpan(row, p_.RowElements()));
        q_.insert(q_.end(), bits.begin(), bits.end());
        q_.resize(q_.size() + q_stride() - p_.RowElements(), kPoison);
      }
      query_starts_.push_back(query_starts_.back() + sequence.query_length);
      const int32_t blocks = (sequence.kv_length + p_.block_tokens - 1) / p_.block_tokens;
      table_starts_.push_back(table_starts_.back() + blocks);
    }
    num_blocks_ = table_starts_.back() + 3;
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks_));
    for (int32_t i = 0; i < num_blocks_; ++i) ids[static_cast<size_t>(i)] = i;
    std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    tables_.assign(ids.begin(), ids.begin() + table_starts_.back());
    tables_.resize(std::max<size_t>(tables_.size(), 1));
    spare_block_ = ids.back();
  }

  void FillPool() {
    pool_.assign(static_cast<size_t>(num_blocks_ * LayerElements() * kLayers), kPoison);
    const int32_t dim = p_.shape.head_dim;
    for (size_t s = 0; s < p_.sequences.size(); ++s) {
      const Sequence& sequence = p_.sequences[s];
      const std::vector<uint16_t> k = HalvesFromFloats(p_.type, data_[s].k);
      const std::vector<uint16_t> v = HalvesFromFloats(p_.type, data_[s].v);
      int32_t* table = &tables_[static_cast<size_t>(table_starts_[s])];
      for (int32_t j = 0; j < sequence.kv_length; ++j) {
        for (int32_t h = 0; h < p_.shape.num_kv_heads; ++h) {
          const int64_t to = (int64_t{table[j / p_.block_tokens]} * kLayers + 1) * LayerElements() +
                             h * HeadElements() + j % p_.block_tokens * dim;
          const int64_t from = (int64_t{j} * p_.shape.num_kv_heads + h) * dim;
          std::copy_n(&k[from], dim, &pool_[to]);
          std::copy_n(&v[from], dim, &pool_[to + HeadElements() / 2]);
        }
      }
      // Blocks that no row sees have gone to somebody else.
      const int32_t first_row = sequence.kv_length - sequence.query_length;
      const int32_t begin = p_.shape.window > 0 ? first_row - p_.shape.window + 1 : 0;
      for (int32_t b = 0; (b + 1) * p_.block_tokens <= begin; ++b) table[b] = spare_block_;
    }
  }

  const Problem& p_;
  std::vector<SequenceData> data_;
  std::vector<int32_t> query_starts_ = {0};
  std::vector<int32_t> kv_lengths_;
  std::vector<int32_t> table_starts_ = {0};
  std::vector<int32_t> tables_;
  std::vector<uint16_t> q_;
  std::vector<uint16_t> pool_;
  int32_t num_blocks_ = 0;
  int32_t spare_block_ = 0;
};

std::string Describe(const Problem& p) {
  return absl::StrCat(p.type == HalfType::kBF16 ? "bf16" : "fp16", " heads ", p.shape.num_heads,
                      "/", p.shape.num_kv_heads, " dim ", p.shape.head_dim, " query ",
                      p.shape.query_length_max, " window ", p.shape.window, " softcap ", p.softcap,
                      " block ", p.block_tokens,
                      p.split == DecodeSplit::kFixed ? absl::StrCat(" fixed ", p.split_tokens)
                                                     : std::string(" balanced"));
}

// The first values of a row, for messages.
std::string Head(absl::Span<const float> values) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(values.size(), 6); ++i) {
    absl::StrAppend(&text, values[i], " ");
  }
  return text;
}

// Runs the step and compares all rows; at most three are reported.
void ExpectMatchesReference(const Problem& p, LaunchOrder order = LaunchOrder::kAfter) {
  SCOPED_TRACE(Describe(p));
  Step step(p);
  const std::vector<uint16_t> out = step.Run(order);
  int failures = 0;
  for (size_t s = 0; s < p.sequences.size() && failures < 3; ++s) {
    const Sequence& sequence = p.sequences[s];
    for (int32_t row = 0; row < sequence.query_length && failures < 3; ++row) {
      for (int32_t head = 0; head < p.shape.num_heads && failures < 3; ++head) {
        const uint16_t* bits =
            &out[static_cast<size_t>(step.QueryStart(s) + row) * step.out_stride() +
                 static_cast<size_t>(head) * p.shape.head_dim];
        const auto got = absl::MakeConstSpan(bits, p.shape.head_dim);
        if (sequence.kv_length == 0) {
          failures += !std::all_of(got.begin(), got.end(), [](uint16_t x) { return x == 0; });
        } else if (sequence.query_length > p.shape.query_length_max) {
          failures +=
              !std::all_of(got.begin(), got.end(), [](uint16_t x) { return x == Step::kPoison; });
        } else {
          const std::vector<float> reference = Reference(p, sequence, step.data()[s], row, head);
          const std::vector<float> values = FloatsFromHalves(p.type, got);
          const double error = RelativeError(reference, values);
          if (error <= 2 * HalfTolerance(p.type)) continue;
          ++failures;
          ADD_FAILURE() << "sequence " << s << " (query " << sequence.query_length << ", keys "
                        << sequence.kv_length << ") row " << row << " head " << head << ": error "
                        << error << "\n  want " << Head(reference) << "\n  got  " << Head(values);
        }
      }
    }
  }
  EXPECT_EQ(failures, 0);
}

// Every length of the list once, query lengths in turn, padding between and at the end.
std::vector<Sequence> MixedSequences(int32_t query_length_max, int32_t kv_length_max) {
  std::vector<Sequence> sequences = {};
  int32_t query_length = 1;
  for (const int32_t length : {1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 5000}) {
    if (length > kv_length_max) continue;
    const auto seed = static_cast<uint64_t>(length);
    sequences.push_back({std::min(query_length, length), length, seed});
    query_length = query_length % query_length_max + 1;
    if (length == 64) sequences.push_back({2, 0, 0});
  }
  sequences.push_back({query_length_max + 1, 40, 77});  // Prefill's.
  for (int i = 0; i < 3; ++i) sequences.push_back({1, 0, 0});
  return sequences;
}

TEST(DecodeAttentionCuda, MatchesTheReferenceAtAllHeadDimensionsAndGroups) {
  SKIP_WITHOUT_GPU();
  int round = 0;
  for (const int32_t head_dim : {8, 16, 64, 80, 128, 256}) {
    for (const int32_t group : {1, 2, 4, 7, 8}) {
      for (const int32_t query_length_max : {1, 5}) {
        Problem p;
        p.shape.num_kv_heads = 1 + round % 2;
        p.shape.num_heads = p.shape.num_kv_heads * group;
        p.shape.head_dim = head_dim;
        p.shape.query_length_max = query_length_max;
        p.type = round % 3 == 1 ? HalfType::kF16 : HalfType::kBF16;
        p.block_tokens = 16 << round % 4;
        p.split = round % 5 < 2 ? DecodeSplit::kFixed : DecodeSplit::kBalanced;
        p.softcap = round % 7 == 3 ? 20.0f : 0;
        p.sequences = MixedSequences(query_length_max, round % 4 == 0 ? 5000 : 1000);
        ExpectMatchesReference(p);
        ++round;
      }
    }
  }
}

TEST(DecodeAttentionCuda, MatchesTheReferenceAtAllQueryLengths) {
  SKIP_WITHOUT_GPU();
  for (int32_t query_length_max = 1; query_length_max <= 8; ++query_length_max) {
    Problem p;
    p.shape = {.num_heads = 16,
               .num_kv_heads = 2,
               .head_dim = query_length_max % 3 == 0 ? 256 : 128,
               .query_length_max = query_length_max};
    p.block_tokens = query_length_max % 2 == 0 ? 64 : 32;
    p.split = query_length_max % 2 == 0 ? DecodeSplit::kFixed : DecodeSplit::kBalanced;
    p.sequences = MixedSequences(query_length_max, 1000);
    ExpectMatchesReference(p);
  }
}

TEST(DecodeAttentionCuda, TakesLargeGroupsInTurns) {
  SKIP_WITHOUT_GPU();
  for (const int32_t group : {16, 40}) {
    Problem p;
    p.shape = {.num_heads = group, .num_kv_heads = 1, .head_dim = 128, .query_length_max = 3};
    p.sequences = MixedSequences(3, 1000);
    ExpectMatchesReference(p);
  }
}

TEST(DecodeAttentionCuda, SeesOnlyTheWindow) {
  SKIP_WITHOUT_GPU();
  int round = 0;
  for (const int32_t window : {1, 16, 63, 64, 100, 1024, 100000}) {
    for (const int32_t block_tokens : {16, 64, 128}) {
      Problem p;
      p.shape = {.num_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = round % 2 == 0 ? 128 : 64,
                 .query_length_max = 1 + round % 3 * 3,
                 .window = window};
      p.block_tokens = block_tokens;
      p.split = round % 2 == 0 ? DecodeSplit::kFixed : DecodeSplit::kBalanced;
      p.softcap = round % 4 == 0 ? 50.0f : 0;
      p.sequences = MixedSequences(p.shape.query_length_max, window == 100 ? 5000 : 1000);
      ExpectMatchesReference(p);
      ++round;
    }
  }
}

TEST(DecodeAttentionCuda, AllConfigurationsMatchTheReference) {
  SKIP_WITHOUT_GPU();
  for (const int32_t blocks_per_sm : {1, 2}) {
    for (const int32_t num_stages : {1, 2, 5}) {
      for (const int32_t grid_size : {1, 7, 0}) {
        Problem p;
        p.shape = {.num_heads = 8, .num_kv_heads = 2, .head_dim = 128, .query_length_max = 2};
        p.tuning = {.blocks_per_sm = blocks_per_sm, .num_stages = num_stages};
        p.grid_size = grid_size;
        p.sequences = MixedSequences(2, 1000);
        ExpectMatchesReference(p, LaunchOrder::kOverlapped);
      }
    }
  }
}

// Bits of the last row of sequence `s`.
std::vector<uint16_t> LastRow(const Problem& p, size_t s) {
  Step step(p);
  const std::vector<uint16_t> out = step.Run();
  const int32_t row = step.QueryStart(s) + p.sequences[s].query_length - 1;
  const auto begin = out.begin() + static_cast<int64_t>(row) * step.out_stride();
  return {begin, begin + p.RowElements()};
}

TEST(DecodeAttentionCuda, InFixedModeARowsBitsDependOnItsKeysOnly) {
  SKIP_WITHOUT_GPU();
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int32_t length : {1, 63, 200, 256, 257, 1000, 3333}) {
      SCOPED_TRACE(absl::StrCat(head_dim, " ", length));
      Problem alone;
      alone.shape = {
          .num_heads = 8, .num_kv_heads = 2, .head_dim = head_dim, .query_length_max = 1};
      alone.split = DecodeSplit::kFixed;
      alone.sequences = {{1, length, 42}};
      const std::vector<uint16_t> expected = LastRow(alone, 0);

      Problem crowd = alone;
      crowd.sequences = MixedSequences(1, 1000);
      crowd.sequences.insert(crowd.sequences.begin() + 5, {1, length, 42});
      EXPECT_EQ(LastRow(crowd, 5), expected) << "in a batch";
      crowd.grid_size = 3;
      EXPECT_EQ(LastRow(crowd, 5), expected) << "on a small grid";
      crowd.block_tokens = 16;
      EXPECT_EQ(LastRow(crowd, 5), expected) << "in small blocks";

      for (const int32_t query_length : {2, 3, 8}) {
        if (query_length > length) continue;
        Problem chunk = alone;
        chunk.shape.query_length_max = query_length;
        chunk.sequences = {{1, 77, 1}, {query_length, length, 42}, {query_length, 900, 2}};
        EXPECT_EQ(LastRow(chunk, 1), expected) << "last of " << query_length << " rows";
      }
    }
  }
}

TEST(DecodeAttentionCuda, RefusesWhatItCannotDo) {
  DecodeAttentionParams p;
  p.shape = {.num_heads = 8, .num_kv_heads = 2, .head_dim = 128, .query_length_max = 1};
  EXPECT_EQ(DecodeAttention(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.kv = {.block_stride = 65536,
          .block_tokens_log2 = 6,
          .head_dim = 128,
          .num_kv_heads = 2,
          .num_blocks = 1};
  EXPECT_EQ(DecodeAttention(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p.shape.head_dim = p.kv.head_dim = 100;
  EXPECT_EQ(DecodeAttention(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.shape.head_dim = p.kv.head_dim = 264;
  EXPECT_EQ(DecodeAttention(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.shape.head_dim = p.kv.head_dim = 128;
  p.shape.query_length_max = 9;
  EXPECT_EQ(DecodeAttention(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
}

}  // namespace
}  // namespace baton::kernels::testing
