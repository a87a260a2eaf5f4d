// A paged KV pool, packed chunks and their metadata on the device, for the test and the benchmark
// of prefill attention.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_TESTING_H_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/launch/cuda_testing.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_attention_plan.h"

namespace baton::kernels::testing {

struct PrefillCase {
  PrefillKernel kernel = PrefillKernel::kMma;
  HalfType type = HalfType::kBF16;
  int32_t head_dim = 64;
  int32_t num_heads = 2;
  int32_t num_kv_heads = 2;
  int32_t block_tokens = 64;
  std::vector<int32_t> query_lengths = {};
  std::vector<int32_t> kv_lengths = {};
  int32_t window = 0;
  float softcap = 0;
  float query_scale = 1;
  float early_keys = 0;             // Keys are larger the earlier they come: by up to so much.
  int32_t num_multiprocessors = 3;  // Few, so that blocks take several tiles.
  uint64_t seed = 1;
};

// Values of keys, values and queries by (sequence, position, head), whatever the layout.
inline float PrefillValue(const PrefillCase& c, int what, int64_t sequence, int64_t position,
                          int64_t head, int64_t column) {
  uint64_t x = c.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(what);
  for (const int64_t part : {sequence, position, head, column}) {
    x = (x ^ static_cast<uint64_t>(part)) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
  }
  // The sum of four uniform values: nearly normal, of variance 1.
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((x >> (16 * i)) & 0xFFFF) / 65536 - 0.5f;
  const float key_scale = 1 + c.early_keys / (1 + static_cast<float>(position) / 64);
  const float value = sum * 1.7320508f * (what == 0 ? c.query_scale : (what == 1 ? key_scale : 1));
  return FloatFromHalf(c.type, HalfFromFloat(c.type, value));
}

class PrefillFixture {
 public:
  explicit PrefillFixture(const PrefillCase& c) : case_(c) {
    MakeValues();
    MakeTables();
    MakePool();
    MakeQueries();
    MakeWork();
  }

  // Runs on poisoned output; results as [num_tokens, num_heads, head_dim].
  std::vector<uint16_t> Run(LaunchOrder order = LaunchOrder::kAfter) {
    out_->Poison();
    const TestStream stream;
    EXPECT_EQ(PrefillAttention(case_.kernel, params_, stream.get(), order), KernelStatus::kOk);
    stream.Synchronize();
    EXPECT_EQ(dispenser_->ToHost(), std::vector<int32_t>({0, 0})) << "the counters are left at 0";
    const std::vector<uint16_t> strided = out_->ToHost();
    std::vector<uint16_t> packed;
    const auto row = static_cast<size_t>(case_.num_heads * case_.head_dim);
    for (size_t t = 0; t < static_cast<size_t>(num_tokens_); ++t) {
      const auto begin = strided.begin() + static_cast<int64_t>(t) * params_.out_stride;
      packed.insert(packed.end(), begin, begin + static_cast<int64_t>(row));
      // Between rows nothing is written.
      for (int64_t i = static_cast<int64_t>(row); i < params_.out_stride; ++i) {
        if (begin[i] != 0xFFFF) ADD_FAILURE() << "written between rows, token " << t;
      }
    }
    return packed;
  }

  PrefillAttentionParams& params() { return params_; }
  int32_t num_tokens() const { return num_tokens_; }
  const std::vector<PrefillWork>& work() const { return work_; }

  // Row (sequence, index in chunk, head) in double precision.
  std::vector<float> Reference(size_t sequence, int32_t index, int32_t head) const {
    const PrefillCase& c = case_;
    const int32_t position = c.kv_lengths[sequence] - c.query_lengths[sequence] + index;
    const int32_t first = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
    const int32_t kv_head = head / (c.num_heads / c.num_kv_heads);
    const float* q = Query(sequence, index, head);
    std::vector<double> weights;
    for (int32_t key = first; key <= position; ++key) {
      const float* k = Key(sequence, key, kv_head);
      double score = 0;
      for (int32_t i = 0; i < c.head_dim; ++i) score += static_cast<double>(q[i]) * k[i];
      score *= params_.scale;
      if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
      weights.push_back(score);
    }
    const double maximum = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - maximum);
    std::vector<double> sums(static_cast<size_t>(c.head_dim));
    for (int32_t key = first; key <= position; ++key) {
      const double weight = weights[static_cast<size_t>(key - first)] / total;
      const float* v = Key(sequence, key, kv_head) + value_offset_[sequence];
      for (int32_t i = 0; i < c.head_dim; ++i) sums[static_cast<size_t>(i)] += weight * v[i];
    }
    return {sums.begin(), sums.end()};
  }

 private:
  static constexpr int32_t kLayers = 2;
  static constexpr int32_t kLayer = 1;

  const float* Query(size_t s, int64_t index, int32_t head) const {
    return &queries_[s][static_cast<size_t>((index * case_.num_heads + head) * case_.head_dim)];
  }
  const float* Key(size_t s, int64_t position, int32_t head) const {
    return &keys_[s][static_cast<size_t>((position * case_.num_kv_heads + head) * case_.head_dim)];
  }

  void MakeValues() {
    const PrefillCase& c = case_;
    for (size_t s = 0; s < c.kv_lengths.size(); ++s) {
      const int32_t first_position = c.kv_lengths[s] - c.query_lengths[s];
      const auto fill = [&](std::vector<float>& to, int what, int64_t begin, int64_t end,
                            int32_t heads) {
        for (int64_t position = begin; position < end; ++position) {
          for (int32_t head = 0; head < heads; ++head) {
            for (int32_t i = 0; i < c.head_dim; ++i) {
              to.push_back(PrefillValue(c, what, static_cast<int64_t>(s), position, head, i));
            }
          }
        }
      };
      fill(queries_.emplace_back(), 0, first_position, c.kv_lengths[s], c.num_heads);
      fill(keys_.emplace_back(), 1, 0, c.kv_lengths[s], c.num_kv_heads);
      value_offset_.push_back(static_cast<int64_t>(keys_.back().size()));
      fill(keys_.back(), 2, 0, c.kv_lengths[s], c.num_kv_heads);
    }
  }

  void MakeTables() {
    int32_t num_blocks = 0;
    table_starts_ = {0};
    query_starts_ = {0};
    for (size_t s = 0; s < case_.kv_lengths.size(); ++s) {
      num_blocks += (case_.kv_lengths[s] + case_.block_tokens - 1) / case_.block_tokens;
      table_starts_.push_back(num_blocks);
      query_starts_.push_back(query_starts_.back() + case_.query_lengths[s]);
    }
    num_tokens_ = query_starts_.back();
    num_blocks_ = num_blocks + 3;
    std::vector<int32_t> ids(static_cast<size_t>(num_blocks_));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(static_cast<uint32_t>(case_.seed)));
    tables_.assign(ids.begin(), ids.begin() + num_blocks);
  }

  // NaN wherever no key is, below the windows included; there the tables hold nonsense too.
  void MakePool() {
    const PrefillCase& c = case_;
    PagedKv16& kv = params_.kv;
    kv.head_dim = c.head_dim;
    kv.num_kv_heads = c.num_kv_heads;
    kv.num_blocks = num_blocks_;
    kv.type = c.type;
    while (1 << kv.block_tokens_log2 < c.block_tokens) ++kv.block_tokens_log2;
    kv.value_offset = int64_t{c.block_tokens} * c.head_dim;
    kv.head_stride = 2 * kv.value_offset;
    kv.layer_offset = kLayer * c.num_kv_heads * kv.head_stride;
    kv.block_stride = kLayers * c.num_kv_heads * kv.head_stride;
    std::vector<uint16_t> pool(static_cast<size_t>(num_blocks_ * kv.block_stride), 0xFFFF);
    for (size_t s = 0; s < c.kv_lengths.size(); ++s) {
      const int32_t first_position = c.kv_lengths[s] - c.query_lengths[s];
      const int32_t first_key = c.window > 0 ? std::max(0, first_position - c.window + 1) : 0;
      for (int32_t key = 0; key < c.kv_lengths[s]; ++key) {
        int32_t& block = tables_[static_cast<size_t>(table_starts_[s] + key / c.block_tokens)];
        if (key < first_key) {
          if (key / c.block_tokens < first_key / c.block_tokens) block = -1000000;
          continue;
        }
        for (int32_t head = 0; head < c.num_kv_heads; ++head) {
          uint16_t* at = &pool[static_cast<size_t>(block * kv.block_stride + kv.layer_offset +
                                                   head * kv.head_stride +
                                                   int64_t{key % c.block_tokens} * c.head_dim)];
          const float* from = Key(s, key, head);
          for (int32_t i = 0; i < c.head_dim; ++i) {
            at[i] = HalfFromFloat(c.type, from[i]);
            at[i + kv.value_offset] = HalfFromFloat(c.type, from[i + value_offset_[s]]);
          }
        }
      }
    }
    pool_ = std::make_unique<DeviceArray<uint16_t>>(pool);
    kv.base = pool_->data();
    if (c.kernel == PrefillKernel::kSm90) {
      ASSERT_EQ(MakeKvTensorMap(kv, &params_.kv_map), KernelStatus::kOk);
    }
  }

  void MakeQueries() {
    const PrefillCase& c = case_;
    params_.q_stride = c.num_heads * c.head_dim + 24;
    params_.out_stride = c.num_heads * c.head_dim + 8;
    std::vector<uint16_t> q(static_cast<size_t>(num_tokens_ * params_.q_stride), 0xFFFF);
    for (size_t s = 0; s < c.kv_lengths.size(); ++s) {
      for (int32_t t = 0; t < c.query_lengths[s]; ++t) {
        const float* from = Query(s, t, 0);
        uint16_t* at = &q[static_cast<size_t>((query_starts_[s] + t) * params_.q_stride)];
        for (int32_t i = 0; i < c.num_heads * c.head_dim; ++i) {
          at[i] = HalfFromFloat(c.type, from[i]);
        }
      }
    }
    q_ = std::make_unique<DeviceArray<uint16_t>>(q);
    out_ = std::make_unique<DeviceArray<uint16_t>>(
        static_cast<size_t>(num_tokens_ * params_.out_stride));
    params_.q = q_->data();
    params_.out = out_->data();
    params_.num_heads = c.num_heads;
    params_.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    params_.softcap = c.softcap;
    params_.window = c.window;
    params_.num_multiprocessors = c.num_multiprocessors;
  }

  void MakeWork() {
    const PrefillPlanShape shape = {.kernel = case_.kernel,
                                    .num_heads = case_.num_heads,
                                    .num_kv_heads = case_.num_kv_heads,
                                    .head_dim = case_.head_dim,
                                    .window = case_.window};
    PlanPrefillAttention(shape, case_.query_lengths, case_.kv_lengths, &work_);
    const auto upload = [&](const std::vector<int32_t>& host) {
      arrays_.push_back(std::make_unique<DeviceArray<int32_t>>(host));
      return arrays_.back()->data();
    };
    params_.query_starts = upload(query_starts_);
    params_.kv_lengths = upload(case_.kv_lengths);
    params_.block_table_starts = upload(table_starts_);
    params_.block_tables = upload(tables_);
    params_.num_work = upload({static_cast<int32_t>(work_.size())});
    dispenser_ = std::make_unique<DeviceArray<int32_t>>(std::vector<int32_t>{0, 0});
    params_.dispenser = dispenser_->data();
    device_work_ = std::make_unique<DeviceArray<PrefillWork>>(work_);
    params_.work = device_work_->data();
  }

  PrefillCase case_;
  PrefillAttentionParams params_;
  int32_t num_tokens_ = 0;
  int32_t num_blocks_ = 0;
  std::vector<std::vector<float>> queries_;  // [sequence][index, head, column]
  std::vector<std::vector<float>> keys_;     // [sequence][position, head, column], then V alike
  std::vector<int64_t> value_offset_;        // [sequence]
  std::vector<int32_t> table_starts_;
  std::vector<int32_t> query_starts_;
  std::vector<int32_t> tables_;
  std::vector<PrefillWork> work_;
  std::unique_ptr<DeviceArray<uint16_t>> pool_;
  std::unique_ptr<DeviceArray<uint16_t>> q_;
  std::unique_ptr<DeviceArray<uint16_t>> out_;
  std::unique_ptr<DeviceArray<int32_t>> dispenser_;
  std::unique_ptr<DeviceArray<PrefillWork>> device_work_;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> arrays_;
};

}  // namespace baton::kernels::testing

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_ATTENTION_TESTING_H_
