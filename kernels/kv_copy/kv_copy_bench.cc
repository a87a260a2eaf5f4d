// GB/s (bytes of KV moved, each read once and written once) of gathering 64 KiB pieces into a slot.
#include <cstddef>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/kv_copy/kv_copy.h"

namespace baton::kernels {
namespace {

void BM_GatherBytes(benchmark::State& state) {
  const size_t slot_bytes = static_cast<size_t>(state.range(0));
  const size_t piece_bytes = static_cast<size_t>(state.range(1));
  std::vector<std::byte> pool(slot_bytes * 2);
  std::vector<std::byte> staging(slot_bytes);
  std::vector<absl::Span<const std::byte>> sources;
  for (size_t offset = 0; offset < slot_bytes; offset += piece_bytes) {
    sources.emplace_back(pool.data() + offset * 2, piece_bytes);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(GatherBytes(sources, absl::MakeSpan(staging)));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * slot_bytes));
}
BENCHMARK(BM_GatherBytes)->Args({4 << 20, 64 << 10})->Args({32 << 20, 64 << 10});

void BM_KvChecksum(benchmark::State& state) {
  std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(KvChecksum(bytes));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
}
BENCHMARK(BM_KvChecksum)->Arg(64 << 10)->Arg(4 << 20);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
