// One thread. Few rows: GB/s of weights. Many rows: GFLOP/s; the ceiling is 32 FLOP a cycle (two
// fused units of eight lanes), measured in the same run by BM_FmaPeak.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/linear/linear.h"

namespace baton::kernels {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

void BM_Linear(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  const auto type = static_cast<WeightType>(state.range(3));
  const size_t weight_bytes = PackedWeightBytes(n, k, false, type);
  std::vector<Line> packed(weight_bytes / 64 + 1);
  std::vector<Line> scratch(LinearScratchFloats() * sizeof(float) / 64 + 1);
  std::vector<float> x(static_cast<size_t>(rows * k), 0.5f);
  std::vector<float> y(static_cast<size_t>(rows * n));
  const LinearParams p{
      .x = x.data(), .packed = packed.data(), .y = y.data(), .n = n, .k = k, .type = type};
  const int64_t panels = NumPanels(n, false);
  const int64_t tile = rows <= 6 ? kLinearDecodePanels : kLinearTilePanelsMax;
  for (auto _ : state) {
    for (int64_t q = 0; q < panels; q += tile) {
      for (int64_t r = 0; r < rows; r += kLinearTileRowsMax) {
        LinearCpu(p, r, std::min(r + kLinearTileRowsMax, rows), q, std::min(q + tile, panels),
                  reinterpret_cast<float*>(scratch.data()));
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight_bytes));
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * static_cast<double>(rows * n * k * state.iterations()), benchmark::Counter::kIsRate);
}
constexpr int64_t kF32 = static_cast<int64_t>(WeightType::kF32);
constexpr int64_t kF16 = static_cast<int64_t>(WeightType::kF16);
constexpr int64_t kBF16 = static_cast<int64_t>(WeightType::kBF16);
BENCHMARK(BM_Linear)
    ->ArgNames({"rows", "n", "k", "type"})
    ->Args({1, 1024, 512, kBF16})
    ->Args({1, 4096, 4096, kBF16})
    ->Args({1, 4096, 4096, kF16})
    ->Args({1, 4096, 4096, kF32})
    ->Args({2, 4096, 4096, kBF16})
    ->Args({4, 4096, 4096, kBF16})
    ->Args({16, 2816, 512, kBF16})
    ->Args({96, 2816, 512, kBF16})
    ->Args({256, 2816, 512, kBF16})
    ->Args({256, 512, 1408, kBF16})
    ->Args({256, 4096, 4096, kBF16})
    ->Args({256, 4096, 4096, kF32});

// Twelve chains of fused multiply-adds on registers: what LinearCpu could reach at best is what one
// tile of it reaches when everything lies in the first-level cache.
void BM_FmaPeak(benchmark::State& state) {
  const int64_t k = 128;
  std::vector<Line> packed(PackedWeightBytes(16, k, false, WeightType::kF32) / 64 + 1);
  std::vector<Line> scratch(LinearScratchFloats() * sizeof(float) / 64 + 1);
  std::vector<float> x(static_cast<size_t>(6 * k), 0.5f);
  std::vector<float> y(6 * 16);
  const LinearParams p{.x = x.data(), .packed = packed.data(), .y = y.data(), .n = 16, .k = k};
  for (auto _ : state) {
    LinearCpu(p, 0, 6, 0, 1, reinterpret_cast<float*>(scratch.data()));
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * static_cast<double>(6 * 16 * k * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_FmaPeak);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
