// Decode attention of the Llama-3-8B shape (32 query heads, 8 KV heads of 128, bf16) over scattered
// blocks of 64 tokens. KV is cold: calls rotate over layers and sequences of a pool of 8.6 GB, in a
// graph of launches that overlap as those of a model's layers do.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/decode_attention/decode_attention_cuda.h"
#include "kernels/decode_attention/decode_attention_plan.h"
#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton::kernels::testing {
namespace {

constexpr int32_t kLayers = 8;
constexpr int32_t kBlockTokens = 64;
constexpr int64_t kPoolBytes = int64_t{8} << 30;

void RequireOk(KernelStatus status) {
  if (status == KernelStatus::kOk) return;
  std::fprintf(stderr, "decode attention: %s\n", KernelStatusName(status));
  std::abort();
}

struct Model {
  int32_t num_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
};

struct Case {
  std::string name;
  std::vector<int32_t> lengths = {};  // Of the sequences.
  int32_t query_length = 1;
  Model model = {};
};

struct Variant {
  DecodeSplit split = DecodeSplit::kBalanced;
  int32_t split_tokens = 256;
  LaunchOrder order = LaunchOrder::kOverlapped;
  bool metadata_is_early = true;
};

// KV, query and out of all benches.
class Memory {
 public:
  static const Memory& Get() {
    static const Memory memory;
    return memory;
  }
  void* pool = nullptr;
  void* q = nullptr;
  void* out = nullptr;

 private:
  Memory() {
    pool = DeviceAllocate(kPoolBytes);
    RequireOk(
        RandomFillCuda({.out = pool, .count = kPoolBytes / 2, .scale = 1, .seed = 3}, nullptr));
    q = RandomDeviceHalves(HalfType::kBF16, size_t{2048} * 8192, 1, 4);
    out = DeviceAllocate(size_t{2048} * 8192 * 2);
  }
};

// One step: sequences take the blocks of the pool in random order; call i uses layer i % kLayers,
// and starts further on in the pool when a step does not use all of it.
class BenchStep {
 public:
  BenchStep(const Case& c, const Variant& v) {
    const Model& m = c.model;
    params_.shape = {.num_heads = m.num_heads,
                     .num_kv_heads = m.num_kv_heads,
                     .head_dim = m.head_dim,
                     .query_length_max = c.query_length};
    const int64_t head = int64_t{2} * kBlockTokens * m.head_dim;
    PagedKv16& kv = params_.kv;
    kv.base = Memory::Get().pool;
    kv.head_stride = head;
    kv.value_offset = head / 2;
    kv.block_stride = head * m.num_kv_heads * kLayers;
    kv.block_tokens_log2 = 6;
    kv.head_dim = m.head_dim;
    kv.num_kv_heads = m.num_kv_heads;
    kv.num_blocks = static_cast<int32_t>(kPoolBytes / 2 / kv.block_stride);
    params_.q = Memory::Get().q;
    params_.out = Memory::Get().out;
    params_.q_stride = params_.out_stride = m.num_heads * m.head_dim;
    params_.scale = 0.088f;
    params_.split_tokens = v.split == DecodeSplit::kFixed ? v.split_tokens : 0;
    params_.metadata_is_early = v.metadata_is_early;
    params_.grid_size = DecodeAttentionGrid(params_.shape);
    PlanStep(c, v);
    bytes_ = 0;
    for (const int32_t length : c.lengths) {
      bytes_ += 4.0 * length * m.num_kv_heads * m.head_dim +
                4.0 * c.query_length * m.num_heads * m.head_dim;
    }
  }

  double bytes() const { return bytes_; }
  void Run(int i, CudaStream stream, LaunchOrder order) const {
    DecodeAttentionParams p = params_;
    p.kv.layer_offset = i % kLayers * p.kv.head_stride * p.kv.num_kv_heads;
    const int32_t windows = p.kv.num_blocks / step_blocks_;
    p.block_tables += i / kLayers % windows * step_blocks_;
    RequireOk(DecodeAttention(p, stream, order));
  }

 private:
  void PlanStep(const Case& c, const Variant& v) {
    std::vector<int32_t> query_starts = {0};
    std::vector<int32_t> table_starts = {0};
    int64_t tokens = 0;
    for (const int32_t length : c.lengths) {
      query_starts.push_back(query_starts.back() + c.query_length);
      table_starts.push_back(table_starts.back() + (length + kBlockTokens - 1) / kBlockTokens);
      tokens += length;
    }
    step_blocks_ = table_starts.back();
    DecodePlanOptions options;
    options.shape = params_.shape;
    options.grid_size = params_.grid_size;
    options.split = v.split;
    options.split_tokens = v.split_tokens;
    const auto num_sequences = static_cast<int32_t>(c.lengths.size());
    options.items_max = DecodeItemsMax(options, num_sequences);
    options.partials_max = DecodePartialsMax(options, num_sequences, tokens);
    DecodePlan plan;
    if (step_blocks_ > params_.kv.num_blocks ||
        !PlanDecodeAttention(options,
                             {.query_starts = query_starts,
                              .kv_lengths = c.lengths,
                              .block_table_starts = table_starts},
                             &plan)) {
      RequireOk(KernelStatus::kUnsupported);
    }
    params_.items = static_cast<const DecodeItem*>(Upload(plan.items));
    params_.workspace = DeviceAllocate(
        DecodeAttentionWorkspaceBytes(params_.shape, params_.grid_size, options.partials_max));
    params_.partials_max = options.partials_max;
    std::vector<int32_t> ids(static_cast<size_t>(params_.kv.num_blocks));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(9));
    params_.block_tables = static_cast<const int32_t*>(Upload(ids));
  }

  template <typename T>
  static const void* Upload(const std::vector<T>& values) {
    void* device = DeviceAllocate(values.size() * sizeof(T));
    CopyToDevice(device, values.data(), values.size() * sizeof(T));
    return device;
  }

  DecodeAttentionParams params_;
  int32_t step_blocks_ = 0;
  double bytes_ = 0;
};

double Time(GpuBench& bench, const Case& c, const Variant& v, double* bytes) {
  const BenchStep step(c, v);
  *bytes = step.bytes();
  const int calls = *bytes > 2e8 ? 16 : 64;
  return bench.MedianMicrosecondsInGraph(
      [&](int i, CudaStream stream) { step.Run(i, stream, v.order); }, calls, 9);
}

void Report(GpuBench& bench, const Case& c, const Variant& v, const std::string& suffix) {
  double bytes = 0;
  const double us = Time(bench, c, v, &bytes);
  bench.ReportBytes("decode_attention_" + c.name + suffix, us, bytes);
}

Case Uniform(const std::string& name, int32_t batch, int32_t length, int32_t query_length = 1,
             const Model& model = {}) {
  return {name, std::vector<int32_t>(static_cast<size_t>(batch), length), query_length, model};
}

Case Mixed() {
  Case c = {.name = "b64_mixed_100_to_16k", .lengths = {}};
  std::mt19937 random(2);
  for (int i = 0; i < 63; ++i) c.lengths.push_back(100 + static_cast<int32_t>(random() % 3000));
  c.lengths.push_back(16000);
  return c;
}

std::vector<Case> MainCases() {
  return {Uniform("b64_4k", 64, 4096), Uniform("b256_1k", 256, 1024),
          Uniform("b64_1k", 64, 1024), Uniform("b8_1k", 8, 1024),
          Uniform("b1_1k", 1, 1024),   Uniform("b1_4k", 1, 4096),
          Uniform("b1_32k", 1, 32768), Mixed()};
}

}  // namespace

BATON_GPU_BENCH(decode_attention) {
  for (const Case& c : MainCases()) Report(bench, c, {}, "");
  for (const Case& c : {Uniform("b64_4k_q4", 64, 4096, 4), Uniform("b1_4k_q4", 1, 4096, 4),
                        Uniform("b64_4k_q8", 64, 4096, 8), Uniform("b8_1k_q4", 8, 1024, 4),
                        Uniform("b64_1k_odd", 64, 1001)}) {
    Report(bench, c, {}, "");
  }
  Report(bench, Uniform("b64_4k_d64", 64, 4096, 1, {32, 8, 64}), {}, "");
  Report(bench, Uniform("b64_2k_d256", 64, 2048, 1, {16, 8, 256}), {}, "");
  Report(bench, Uniform("b64_1k_mha", 64, 1024, 1, {32, 32, 128}), {}, "");
  for (const Case& c : MainCases()) {
    Report(bench, c, {.split = DecodeSplit::kFixed}, "_fixed");
    Report(bench, c, {.order = LaunchOrder::kAfter}, "_ordered");
    Report(bench, c, {.metadata_is_early = false}, "_late_metadata");
  }
}

}  // namespace baton::kernels::testing
