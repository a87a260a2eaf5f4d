// Benchmarks of CUDA kernels: cold caches, medians, and every figure beside its floor or a peer
// taken in the same run. A bench file defines functions with BATON_GPU_BENCH; gpu_bench runs those
// whose name matches, prints one row a measurement, and writes bench/results in the form that
// bench/roofline.py reads.
#ifndef BATON_KERNELS_LAUNCH_GPU_BENCH_HARNESS_H_
#define BATON_KERNELS_LAUNCH_GPU_BENCH_HARNESS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "kernels/launch/launch.h"

namespace baton::kernels::testing {

struct BenchRow {
  std::string name;
  double value = 0;
  std::string unit;    // "us", "GB/s", "TFLOP/s"
  std::string anchor;  // What it is compared with: "copy bandwidth", "floor".
  double anchor_value = 0;
  double ratio = 0;  // Of the anchor; 1 is as good as it.
};

class GpuBench {
 public:
  explicit GpuBench(CudaStream stream) : stream_(stream) {}
  CudaStream stream() const { return stream_; }

  // Median time of run(i, stream), in microseconds, by events over single calls with a cold L2.
  // For kernels of 20 us and more.
  double MedianMicroseconds(const std::function<void(int, CudaStream)>& run, int iterations = 30);
  // For short kernels: a graph of run(0), ..., run(calls - 1), replayed; the median over replays
  // divided by `calls`. The caller rotates among inputs by i, larger together than the L2 (60 MB).
  double MedianMicrosecondsInGraph(const std::function<void(int, CudaStream)>& run, int calls,
                                   int replays = 15);
  // Device-to-device copy of 2 GB, bytes read plus written, measured once a process.
  double CopyBytesPerSecond();

  void Report(const BenchRow& row);
  // "GB/s" of `bytes` in `us` against the copy bandwidth; the time is printed too.
  void ReportBytes(const std::string& name, double us, double bytes);
  // "TFLOP/s" of `flops` in `us` against `anchor_tflops`.
  void ReportFlops(const std::string& name, double us, double flops, const std::string& anchor,
                   double anchor_tflops);
  // The same of a product, against the largest one of cuBLAS that gpu_anchors.py timed.
  void ReportProduct(const std::string& name, double us, double flops);
  const std::vector<BenchRow>& rows() const { return rows_; }

 private:
  void FlushL2();

  CudaStream stream_;
  void* flush_ = nullptr;
  double copy_bytes_per_second_ = 0;
  std::vector<BenchRow> rows_;
};

// Uninitialised device memory filled with random 16-bit values of about the given scale (never
// zeros: they flatter). Lives until the process ends. Aborts on failure.
void* RandomDeviceHalves(HalfType type, size_t count, float scale, uint64_t seed);
void* DeviceAllocate(size_t bytes);  // Zeroed; lives until the process ends.
void CopyToDevice(void* device, const void* host, size_t bytes);

// What bench/gpu_anchors.py measured under this name on the same machine (BATON_ANCHORS names its
// file); 0 when there is none.
double Anchor(const std::string& name);

using BenchFunction = void (*)(GpuBench&);
bool RegisterBench(const char* name, BenchFunction function);
#define BATON_GPU_BENCH(name)                                                                 \
  static void name(baton::kernels::testing::GpuBench& bench);                                 \
  static const bool name##_registered = baton::kernels::testing::RegisterBench(#name, &name); \
  static void name([[maybe_unused]] baton::kernels::testing::GpuBench& bench)

}  // namespace baton::kernels::testing

#endif  // BATON_KERNELS_LAUNCH_GPU_BENCH_HARNESS_H_
