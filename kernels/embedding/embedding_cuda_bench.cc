// EmbedCuda and GatherRowsCuda for rows of 4096.
#include "kernels/embedding/embedding_cuda.h"

#include <string>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"

namespace baton::kernels {
namespace {

using testing::CopyToDevice;
using testing::DeviceAllocate;
using testing::GpuBench;
using testing::RandomDeviceHalves;

constexpr int64_t kCols = 4096;
constexpr int64_t kVocab = 32768;
constexpr int64_t kRowsMax = 8192;

BATON_GPU_BENCH(embedding) {
  void* table = RandomDeviceHalves(HalfType::kBF16, kVocab * kCols, 1, 1);
  auto* out = static_cast<float*>(DeviceAllocate(kRowsMax * kCols * 4));
  auto* gathered = static_cast<float*>(DeviceAllocate(kRowsMax * kCols * 4));
  std::vector<int32_t> ids;
  std::vector<int32_t> rows;
  for (int64_t r = 0; r < kRowsMax; ++r) {
    ids.push_back(static_cast<int32_t>(r * 7919 % kVocab));
    rows.push_back(static_cast<int32_t>(r * 7919 % kRowsMax));
  }
  auto* device_ids = static_cast<int32_t*>(DeviceAllocate(kRowsMax * 4));
  auto* device_rows = static_cast<int32_t*>(DeviceAllocate(kRowsMax * 4));
  CopyToDevice(device_ids, ids.data(), kRowsMax * 4);
  CopyToDevice(device_rows, rows.data(), kRowsMax * 4);
  for (const int64_t num_rows : {1, 8, 64, 8192}) {
    const int64_t step = num_rows == kRowsMax ? 0 : num_rows;
    const auto embed = [&](int i, CudaStream stream) {
      EmbedCuda({.token_source = device_ids + i * step,
                 .table = table,
                 .out = out + i * step * kCols,
                 .rows = num_rows,
                 .n = kVocab,
                 .k = kCols},
                stream, LaunchOrder::kOverlapped);
    };
    const auto gather = [&](int i, CudaStream stream) {
      GatherRowsCuda({.in = out,
                      .rows = device_rows + i * step,
                      .out = gathered + i * step * kCols,
                      .in_rows = kRowsMax,
                      .num_rows = num_rows,
                      .row_bytes = kCols * 4},
                     stream, LaunchOrder::kOverlapped);
    };
    const auto time = [&](const std::function<void(int, CudaStream)>& run) {
      return step != 0 ? bench.MedianMicrosecondsInGraph(run, 100) : bench.MedianMicroseconds(run);
    };
    const auto elements = static_cast<double>(num_rows * kCols);
    bench.ReportBytes("embed/" + std::to_string(num_rows) + "x4096", time(embed), 6 * elements);
    bench.ReportBytes("gather_rows/" + std::to_string(num_rows) + "x4096_f32", time(gather),
                      8 * elements);
  }
}

}  // namespace
}  // namespace baton::kernels
