// GB/s of AddNormCpu: residual and delta read, residual and out written.
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/norm/norm.h"

namespace baton::kernels {
namespace {

void BM_AddNorm(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t cols = state.range(1);
  const auto n = static_cast<size_t>(rows * cols);
  std::vector<float> delta(n, 1e-3f);
  std::vector<float> residual(n, 0.5f);
  std::vector<float> out(n);
  std::vector<float> gamma(static_cast<size_t>(cols), 1.0f);
  const AddNormParams p{.delta = delta.data(),
                        .residual = residual.data(),
                        .gamma = gamma.data(),
                        .out = out.data(),
                        .cols = cols,
                        .epsilon = 1e-5f};
  for (auto _ : state) {
    AddNormCpu(p, 0, rows);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(n) * 16);
}
BENCHMARK(BM_AddNorm)->Args({1, 512})->Args({1, 4096})->Args({256, 512})->Args({256, 4096});

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
