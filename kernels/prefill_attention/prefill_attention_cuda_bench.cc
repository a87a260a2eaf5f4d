// Prefill attention over shuffled blocks against cuDNN on contiguous tensors. The anchors are
// measured by bench/gpu_anchors.py on the same machine; BATON_ANCHORS names its file.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"
#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_attention_plan.h"

namespace baton::kernels::testing {
namespace {

struct Shape {
  std::string name;
  int32_t num_sequences = 1;
  int32_t length = 0;
  int32_t num_heads = 32;
  int32_t num_kv_heads = 32;
  int32_t head_dim = 128;
  int32_t block_tokens = 64;
  PrefillKernel kernel = PrefillKernel::kSm90;
  std::string anchor = {};  // Its name in the file; empty: `name`.
  int32_t chunk = 0;        // Query rows of each sequence, its last ones; 0: all.
  int32_t window = 0;
};

template <typename T>
T* Upload(const std::vector<T>& host) {
  void* device = DeviceAllocate(host.size() * sizeof(T) + 16);
  CopyToDevice(device, host.data(), host.size() * sizeof(T));
  return static_cast<T*>(device);
}

// Pairs of query and visible key.
double NumPairs(const Shape& s, int32_t chunk) {
  double pairs = 0;
  for (int32_t position = s.length - chunk; position < s.length; ++position) {
    pairs += s.window > 0 ? std::min(s.window, position + 1) : position + 1;
  }
  return pairs * s.num_sequences;
}

// Rows do not heat each other, then clocks rise and settle under load: as bench/gpu_anchors.py
// does.
template <typename Function>
void WarmUp(GpuBench& bench, const Function& run) {
  const auto begin = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  std::this_thread::sleep_until(begin);
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(200)) {
    bench.MedianMicroseconds(run, 1);
  }
}

// One allocation for all shapes: the largest pool of these benchmarks.
void* Pool() {
  static void* pool = RandomDeviceHalves(HalfType::kBF16, size_t{1} << 29, 1, 1);
  return pool;
}

void Run(GpuBench& bench, const Shape& s) {
  PrefillAttentionParams p;
  PagedKv16& kv = p.kv;
  while (1 << kv.block_tokens_log2 < s.block_tokens) ++kv.block_tokens_log2;
  kv.head_dim = s.head_dim;
  kv.num_kv_heads = s.num_kv_heads;
  kv.value_offset = int64_t{s.block_tokens} * s.head_dim;
  kv.head_stride = 2 * kv.value_offset;
  kv.block_stride = kv.head_stride * s.num_kv_heads;
  const int32_t blocks_each = (s.length + s.block_tokens - 1) / s.block_tokens;
  kv.num_blocks = blocks_each * s.num_sequences;
  kv.base = Pool();
  MakeKvTensorMap(kv, &p.kv_map);

  const int32_t chunk = s.chunk > 0 ? s.chunk : s.length;
  std::vector<int32_t> tables(static_cast<size_t>(kv.num_blocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(1));
  std::vector<int32_t> query_starts;
  std::vector<int32_t> table_starts;
  for (int32_t i = 0; i <= s.num_sequences; ++i) {
    query_starts.push_back(i * chunk);
    table_starts.push_back(i * blocks_each);
  }
  const std::vector<int32_t> query_lengths(static_cast<size_t>(s.num_sequences), chunk);
  const std::vector<int32_t> kv_lengths(static_cast<size_t>(s.num_sequences), s.length);
  std::vector<PrefillWork> work;
  PlanPrefillAttention({.kernel = s.kernel,
                        .num_heads = s.num_heads,
                        .num_kv_heads = s.num_kv_heads,
                        .head_dim = s.head_dim,
                        .window = s.window},
                       query_lengths, kv_lengths, &work);

  const int64_t row = int64_t{s.num_heads} * s.head_dim;
  const auto elements = static_cast<size_t>(row * chunk * s.num_sequences);
  static void* q = RandomDeviceHalves(HalfType::kBF16, size_t{1} << 27, 1, 2);
  static void* out = DeviceAllocate(size_t{1} << 28);
  if (elements > size_t{1} << 27) return;
  p.q = q;
  p.out = out;
  p.q_stride = row;
  p.out_stride = row;
  p.num_heads = s.num_heads;
  p.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
  p.window = s.window;
  p.query_starts = Upload(query_starts);
  p.kv_lengths = Upload(kv_lengths);
  p.block_table_starts = Upload(table_starts);
  p.block_tables = Upload(tables);
  p.work = Upload(work);
  p.num_work = Upload(std::vector<int32_t>{static_cast<int32_t>(work.size())});
  p.dispenser = Upload(std::vector<int32_t>{0, 0});
  p.num_multiprocessors = 132;

  const auto run = [&](int, CudaStream stream) {
    PrefillAttention(s.kernel, p, stream, LaunchOrder::kAfter);
  };
  WarmUp(bench, run);
  const double us = bench.MedianMicroseconds(run, s.kernel == PrefillKernel::kMma ? 7 : 15);
  const double flops = 4.0 * s.head_dim * s.num_heads * NumPairs(s, chunk);
  const double anchor = Anchor(s.anchor.empty() ? s.name : s.anchor);
  bench.ReportFlops(s.name, us, flops, anchor > 0 ? "cuDNN contiguous" : "none",
                    anchor > 0 ? anchor : 1);
}

BATON_GPU_BENCH(prefill_attention) {
  for (const Shape& shape : std::vector<Shape>{
           {.name = "prefill_attention_1k", .num_sequences = 16, .length = 1024},
           {.name = "prefill_attention_4k", .num_sequences = 4, .length = 4096},
           {.name = "prefill_attention_8k", .num_sequences = 2, .length = 8192},
           {.name = "prefill_attention_16k", .num_sequences = 1, .length = 16384},
       }) {
    Run(bench, shape);
  }
}

BATON_GPU_BENCH(prefill_attention_gqa) {
  for (const Shape& shape : std::vector<Shape>{
           {.name = "prefill_attention_gqa_1k", .num_sequences = 16, .length = 1024},
           {.name = "prefill_attention_gqa_4k", .num_sequences = 4, .length = 4096},
           {.name = "prefill_attention_gqa_8k", .num_sequences = 2, .length = 8192},
           {.name = "prefill_attention_gqa_16k", .num_sequences = 1, .length = 16384},
           {.name = "prefill_attention_gqa_chunk512_of_16k", .length = 16384, .chunk = 512},
           {.name = "prefill_attention_gqa_chunk2k_of_16k", .length = 16384, .chunk = 2048},
           {.name = "prefill_attention_gqa_window1k_of_16k", .length = 16384, .window = 1024},
       }) {
    Shape gqa = shape;
    gqa.num_kv_heads = 8;
    Run(bench, gqa);
  }
}

BATON_GPU_BENCH(prefill_attention_block_tokens) {
  for (const int32_t block_tokens : {16, 32, 128}) {
    Run(bench, {.name = "prefill_attention_8k_block" + std::to_string(block_tokens),
                .num_sequences = 2,
                .length = 8192,
                .block_tokens = block_tokens,
                .anchor = "prefill_attention_8k"});
  }
}

BATON_GPU_BENCH(prefill_attention_head_dims) {
  for (const int32_t head_dim : {64, 256}) {
    const std::string prefix = "prefill_attention_hd" + std::to_string(head_dim);
    // As many heads as make 32 of 128.
    const int32_t heads = 4096 / head_dim;
    for (const int32_t length : {4096, 16384}) {
      Run(bench, {.name = prefix + "_" + std::to_string(length / 1024) + "k",
                  .num_sequences = 16384 / length,
                  .length = length,
                  .num_heads = heads,
                  .num_kv_heads = heads,
                  .head_dim = head_dim});
    }
  }
}

BATON_GPU_BENCH(prefill_attention_mma) {
  for (const int32_t head_dim : {64, 128, 256}) {
    const int32_t heads = 4096 / head_dim;
    const std::string suffix = head_dim == 128 ? "" : "hd" + std::to_string(head_dim) + "_";
    Run(bench, {.name = "prefill_attention_mma_" + suffix + "4k",
                .num_sequences = 4,
                .length = 4096,
                .num_heads = heads,
                .num_kv_heads = heads,
                .head_dim = head_dim,
                .kernel = PrefillKernel::kMma,
                .anchor = "prefill_attention_" + suffix + "4k"});
  }
}

}  // namespace
}  // namespace baton::kernels::testing
