// Rows a second of SampleRowCpu, one thread: greedy, plain temperature (flat and peaked), filters.
#include <cstddef>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/sampling/sampling.h"

namespace baton::kernels {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

void BM_Sample(benchmark::State& state, const SampleParams& params, float deviation) {
  const auto vocab = static_cast<int32_t>(state.range(0));
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& v : logits) v = normal(rng);
  std::vector<Line> scratch(SampleScratchBytes(vocab) / 64 + 1);
  SampleParams p = params;
  SampleResult result;
  for (auto _ : state) {
    ++p.noise.position;
    SampleRowCpu(logits.data(), vocab, p, scratch.data(), &result);
    benchmark::DoNotOptimize(result);
  }
  state.SetBytesProcessed(state.iterations() * vocab * 4);
}
BENCHMARK_CAPTURE(BM_Sample, greedy, SampleParams{}, 3.0f)->Arg(4096)->Arg(131072);
BENCHMARK_CAPTURE(BM_Sample, flat, (SampleParams{.temperature = 1}), 0.1f)->Arg(4096)->Arg(131072);
BENCHMARK_CAPTURE(BM_Sample, peaked, (SampleParams{.temperature = 1}), 8.0f)
    ->Arg(4096)
    ->Arg(131072);
BENCHMARK_CAPTURE(BM_Sample, top_k_top_p,
                  (SampleParams{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}), 3.0f)
    ->Arg(4096)
    ->Arg(131072);
BENCHMARK_CAPTURE(BM_Sample, top_p, (SampleParams{.temperature = 1, .top_p = 0.95f}), 3.0f)
    ->Arg(4096)
    ->Arg(131072);
BENCHMARK_CAPTURE(BM_Sample, logprobs, (SampleParams{.num_top_logprobs = 20}), 3.0f)
    ->Arg(4096)
    ->Arg(131072);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
