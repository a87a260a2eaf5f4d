// RopeKvWriteCuda and RopeAnglesCuda for the attention of an 8B model (32 + 2 * 8 heads of 128).
#include "kernels/rope/rope_cuda.h"

#include <string>
#include <vector>

#include "kernels/launch/gpu_bench_harness.h"

namespace baton::kernels {
namespace {

using testing::CopyToDevice;
using testing::DeviceAllocate;
using testing::GpuBench;
using testing::RandomDeviceHalves;

constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kDim = 128;
constexpr int64_t kWidth = (kHeads + 2 * kKvHeads) * kDim;
constexpr int64_t kRowsMax = 8192;
constexpr int64_t kBlockTokens = 64;

BATON_GPU_BENCH(rope) {
  auto* qkv = static_cast<uint16_t*>(RandomDeviceHalves(HalfType::kBF16, kRowsMax * kWidth, 1, 1));
  auto* q = static_cast<uint16_t*>(DeviceAllocate(kRowsMax * kHeads * kDim * 2));
  auto* pool = static_cast<uint16_t*>(DeviceAllocate(kRowsMax * 2 * kKvHeads * kDim * 2));
  auto* angles = static_cast<float*>(DeviceAllocate(kRowsMax * kDim * 4));
  auto* gamma = static_cast<float*>(RandomDeviceHalves(HalfType::kBF16, kDim * 2, 1, 2));
  std::vector<int64_t> slots;
  std::vector<int32_t> positions;
  for (int64_t r = 0; r < kRowsMax; ++r) slots.push_back(r);
  for (int32_t r = 0; r < kRowsMax; ++r) positions.push_back(r);
  auto* device_slots = static_cast<int64_t*>(DeviceAllocate(slots.size() * 8));
  auto* device_positions = static_cast<int32_t*>(DeviceAllocate(positions.size() * 4));
  auto* frequencies = static_cast<float*>(RandomDeviceHalves(HalfType::kF16, kDim, 1, 3));
  CopyToDevice(device_slots, slots.data(), slots.size() * 8);
  CopyToDevice(device_positions, positions.data(), positions.size() * 4);
  for (const bool norm : {false, true}) {
    for (const int64_t rows : {1, 8, 64, 256, 4096, 8192}) {
      const auto run = [&](int i, CudaStream stream) {
        const int64_t first = rows <= 64 ? i * rows : 0;
        RopeKvWriteCuda({.qkv = qkv + first * kWidth,
                         .angles = angles + first * kDim,
                         .slots = device_slots + first,
                         .q_gamma = norm ? gamma : nullptr,
                         .k_gamma = norm ? gamma : nullptr,
                         .qk_epsilon = 1e-6f,
                         .q = q + first * kHeads * kDim,
                         .kv = {.base = pool,
                                .block_stride = kKvHeads * 2 * kBlockTokens * kDim,
                                .head_stride = 2 * kBlockTokens * kDim,
                                .value_offset = kBlockTokens * kDim,
                                .block_tokens_log2 = 6,
                                .head_dim = kDim,
                                .num_kv_heads = kKvHeads,
                                .num_blocks = static_cast<int32_t>(kRowsMax / kBlockTokens)},
                         .rows = rows,
                         .num_heads = kHeads},
                        stream, LaunchOrder::kOverlapped);
      };
      const double us =
          rows <= 256 ? bench.MedianMicrosecondsInGraph(run, 100) : bench.MedianMicroseconds(run);
      bench.ReportBytes(
          "rope_kv_write/" + std::to_string(rows) + (norm ? "/qk_norm" : ""), us,
          static_cast<double>(rows) * (4.0 * static_cast<double>(kWidth) + 4.0 * kDim));
    }
  }
  for (const int64_t rows : {1, 64, 8192}) {
    const auto run = [&](int, CudaStream stream) {
      RopeAnglesCuda({.positions = device_positions,
                      .inverse_frequencies = frequencies,
                      .out = angles,
                      .rows = rows,
                      .half = kDim / 2},
                     stream, LaunchOrder::kOverlapped);
    };
    bench.ReportBytes("rope_angles/" + std::to_string(rows),
                      bench.MedianMicrosecondsInGraph(run, 50),
                      static_cast<double>(rows) * kDim * 4.0);
  }
}

}  // namespace
}  // namespace baton::kernels
