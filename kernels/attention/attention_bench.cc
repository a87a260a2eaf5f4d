// One thread. Decode: GB/s of KV read. Prefill: GFLOP/s of the causal half.
#include <cstddef>
#include <numeric>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/attention/attention.h"

namespace baton::kernels {
namespace {

struct alignas(64) Line {
  float floats[16];
};

void BM_Attention(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const auto context = static_cast<int32_t>(state.range(1));
  const auto heads = static_cast<int32_t>(state.range(2));
  const auto kv_heads = static_cast<int32_t>(state.range(3));
  const auto dim = static_cast<int32_t>(state.range(4));
  const int64_t head_stride = int64_t{2} * 64 * dim;
  const int64_t block_stride = head_stride * kv_heads;
  const int32_t blocks = (context + 63) / 64;
  std::vector<float> pool(static_cast<size_t>(blocks * block_stride), 0.01f);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> q(static_cast<size_t>(tokens * heads * dim), 0.1f);
  std::vector<float> out(q.size());
  std::vector<Line> scratch(AttentionScratchFloats(heads / kv_heads, dim) / 16 + 1);
  const AttentionParams p{.q = q.data(),
                          .out = out.data(),
                          .kv = {.base = pool.data(),
                                 .block_stride = block_stride,
                                 .head_stride = head_stride,
                                 .value_offset = head_stride / 2,
                                 .block_tokens_log2 = 6,
                                 .head_dim = dim},
                          .num_heads = heads,
                          .num_kv_heads = kv_heads,
                          .scale = 0.1f};
  const int32_t chunk = AttentionWorkTokens(heads / kv_heads);
  double flops = 0;
  for (int32_t t = context - tokens; t < context; ++t) flops += 4.0 * heads * dim * (t + 1);
  for (auto _ : state) {
    for (int32_t t = 0; t < tokens; t += chunk) {
      for (int32_t h = 0; h < kv_heads; ++h) {
        AttentionCpu(p,
                     {.token_begin = t,
                      .num_tokens = tokens - t < chunk ? tokens - t : chunk,
                      .first_position = context - tokens + t,
                      .kv_head = h,
                      .block_table = table.data()},
                     scratch[0].floats);
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * int64_t{8} * context * kv_heads * dim);
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Attention)
    ->ArgNames({"tokens", "context", "heads", "kv_heads", "dim"})
    ->Args({1, 1024, 4, 2, 128})
    ->Args({1, 16384, 4, 2, 128})
    ->Args({1, 4096, 32, 8, 128})
    ->Args({1, 512, 8, 4, 8})
    ->Args({256, 256, 4, 2, 128})
    ->Args({256, 1024, 4, 2, 128})
    ->Args({256, 1024, 8, 4, 8});

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
