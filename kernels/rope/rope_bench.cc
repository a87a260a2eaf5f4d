// GB/s of RopeKvWriteCpu: qkv read, q and KV written.
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/rope/rope.h"

namespace baton::kernels {
namespace {

void BM_RopeKvWrite(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int32_t heads = 4;
  const int32_t kv_heads = 2;
  const int32_t dim = 128;
  const int64_t block_floats = kv_heads * 2 * 64 * dim;
  std::vector<float> qkv(static_cast<size_t>(rows * (heads + 2 * kv_heads) * dim), 0.5f);
  std::vector<float> angles(static_cast<size_t>(rows * dim), 0.7f);
  std::vector<float> q(static_cast<size_t>(rows * heads * dim));
  std::vector<float> pool(static_cast<size_t>((rows / 64 + 1) * block_floats));
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < rows; ++i) slots.push_back(i);
  const RopeKvWriteParams p{.qkv = qkv.data(),
                            .angles = angles.data(),
                            .slots = slots.data(),
                            .q = q.data(),
                            .kv = {.base = pool.data(),
                                   .block_stride = block_floats,
                                   .head_stride = 2 * 64 * dim,
                                   .value_offset = 64 * dim,
                                   .block_tokens_log2 = 6,
                                   .head_dim = dim},
                            .num_heads = heads,
                            .num_kv_heads = kv_heads};
  for (auto _ : state) {
    RopeKvWriteCpu(p, 0, rows);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(qkv.size()) * 8);
}
BENCHMARK(BM_RopeKvWrite)->Arg(1)->Arg(64)->Arg(512);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
