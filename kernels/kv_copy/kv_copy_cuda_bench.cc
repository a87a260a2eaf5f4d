// KvGatherCuda, KvScatterCuda and KvChecksumCuda of 134 MB (1,024 tokens of an 8B model), in pieces
// of a whole block (8 MiB), a layer of a block (256 KiB) and a head of that (32 KiB).
#include "kernels/kv_copy/kv_copy_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"

namespace baton::kernels {
namespace {

using testing::CopyToDevice;
using testing::DeviceAllocate;
using testing::GpuBench;
using testing::RandomDeviceHalves;

constexpr int64_t kTotal = int64_t{128} << 20;
constexpr int64_t kPool = 4 * kTotal;

BATON_GPU_BENCH(kv_copy) {
  void* pool = RandomDeviceHalves(HalfType::kBF16, kPool / 2, 1, 1);
  void* staging = DeviceAllocate(kTotal);
  auto* sum = static_cast<uint64_t*>(DeviceAllocate(8));
  for (const int64_t kib : {8192, 256, 32, 4}) {
    const int64_t piece = kib << 10;
    std::vector<KvCopyRange> ranges;
    for (int64_t at = 0; at < kPool; at += piece) ranges.push_back({at, piece, 0});
    std::shuffle(ranges.begin(), ranges.end(), std::mt19937(1));
    ranges.resize(static_cast<size_t>(kTotal / piece));
    int64_t total = 0;
    PlanKvCopy(ranges.data(), static_cast<int64_t>(ranges.size()), kPool, &total);
    auto* device_ranges =
        static_cast<KvCopyRange*>(DeviceAllocate(ranges.size() * sizeof(KvCopyRange)));
    CopyToDevice(device_ranges, ranges.data(), ranges.size() * sizeof(KvCopyRange));
    for (const bool checksum : {true, false}) {
      const KvCopyCudaParams p = {.pool = pool,
                                  .staging = staging,
                                  .ranges = device_ranges,
                                  .num_ranges = static_cast<int32_t>(ranges.size()),
                                  .total_bytes = total,
                                  .checksum = checksum ? sum : nullptr};
      const std::string suffix =
          "/134MB/" + std::to_string(kib) + "KiB" + (checksum ? "" : "/no_checksum");
      bench.ReportBytes("kv_gather" + suffix,
                        bench.MedianMicroseconds([&](int, CudaStream s) { KvGatherCuda(p, s); }),
                        2.0 * kTotal);
      bench.ReportBytes("kv_scatter" + suffix,
                        bench.MedianMicroseconds([&](int, CudaStream s) { KvScatterCuda(p, s); }),
                        2.0 * kTotal);
    }
  }
  bench.ReportBytes("memcpy/134MB", bench.MedianMicroseconds([&](int, CudaStream s) {
    cudaMemcpyAsync(staging, pool, kTotal, cudaMemcpyDeviceToDevice, s);
  }),
                    2.0 * kTotal);
  bench.ReportBytes("kv_checksum/134MB", bench.MedianMicroseconds([&](int, CudaStream s) {
    KvChecksumCuda(staging, kTotal, sum, s);
  }),
                    1.0 * kTotal);
}

}  // namespace
}  // namespace baton::kernels
