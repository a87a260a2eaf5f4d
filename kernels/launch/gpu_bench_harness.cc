#include "kernels/launch/gpu_bench_harness.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <regex>

#include "kernels/launch/cuda_testing.h"
#include "kernels/launch/read_memory.h"

namespace baton::kernels::testing {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;

struct Registered {
  const char* name;
  BenchFunction function;
};
std::vector<Registered>& Benches() {
  static std::vector<Registered> benches;
  return benches;
}

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class EventTimer {
 public:
  EventTimer() {
    Require(cudaEventCreate(&begin_), "cudaEventCreate");
    Require(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~EventTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;
  void Begin(CudaStream stream) { Require(cudaEventRecord(begin_, stream), "cudaEventRecord"); }
  double EndMicroseconds(CudaStream stream) {
    Require(cudaEventRecord(end_, stream), "cudaEventRecord");
    Require(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return ms * 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

void WriteJson(const char* path, const std::vector<BenchRow>& rows, const char* command) {
  cudaDeviceProp properties;
  Require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const char* commit = std::getenv("BATON_COMMIT");
  char date[] = "YYYY-MM-DD";
  const std::time_t now = std::time(nullptr);  // NOLINT(banned-wall-clock): the date of a row
  std::tm calendar = {};
  std::strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &calendar));
  std::ofstream out(path);
  out << "[\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const BenchRow& row = rows[i];
    out << "  {\"name\": \"" << row.name << "\", \"value\": " << row.value << ", \"unit\": \""
        << row.unit << "\", \"anchor\": \"" << row.anchor
        << "\", \"anchor_value\": " << row.anchor_value << ", \"ratio\": " << row.ratio
        << ", \"command\": \"" << command << "\", \"hardware\": \"" << properties.name
        << "\", \"date\": \"" << date << "\", \"commit\": \"" << (commit != nullptr ? commit : "")
        << "\"}" << (i + 1 < rows.size() ? "," : "") << "\n";
  }
  out << "]\n";
}

}  // namespace

double Anchor(const std::string& name) {
  const char* path = std::getenv("BATON_ANCHORS");
  if (path == nullptr) return 0;
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string key = "\"" + name + "\":";
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + key.size(), nullptr);
}

bool RegisterBench(const char* name, BenchFunction function) {
  Benches().push_back({name, function});
  return true;
}

void GpuBench::FlushL2() {
  if (flush_ == nullptr) flush_ = DeviceAllocate(kFlushBytes);
  // Read, not written: dirty lines in the cache would be written back at the next kernel's expense.
  const KernelStatus status =
      ReadMemory(flush_, kFlushBytes, static_cast<uint32_t*>(flush_), stream_);
  Require(status == KernelStatus::kOk ? cudaSuccess : cudaPeekAtLastError(), "flush");
}

double GpuBench::MedianMicroseconds(const std::function<void(int, CudaStream)>& run,
                                    int iterations) {
  for (int i = 0; i < 3; ++i) run(i, stream_);
  EventTimer timer;
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    FlushL2();
    timer.Begin(stream_);
    run(i, stream_);
    times.push_back(timer.EndMicroseconds(stream_));
  }
  Require(cudaGetLastError(), "bench");
  return Median(times);
}

double GpuBench::MedianMicrosecondsInGraph(const std::function<void(int, CudaStream)>& run,
                                           int calls, int replays) {
  run(0, stream_);  // Modules are loaded outside of the capture.
  Require(cudaStreamSynchronize(stream_), "warm-up");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) run(i, stream_);
  Require(cudaStreamEndCapture(stream_, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  Require(cudaGraphLaunch(executable, stream_), "launch");
  Require(cudaStreamSynchronize(stream_), "launch");
  EventTimer timer;
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    timer.Begin(stream_);
    Require(cudaGraphLaunch(executable, stream_), "launch");
    times.push_back(timer.EndMicroseconds(stream_) / calls);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return Median(times);
}

double GpuBench::CopyBytesPerSecond() {
  if (copy_bytes_per_second_ > 0) return copy_bytes_per_second_;
  constexpr size_t kBytes = size_t{2} << 30;
  void* from = RandomDeviceHalves(HalfType::kBF16, kBytes / 2, 1, 1);
  void* to = DeviceAllocate(kBytes);
  const double us = MedianMicroseconds(
      [&](int, CudaStream stream) {
        Require(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), "copy");
      },
      10);
  cudaFree(from);
  cudaFree(to);
  copy_bytes_per_second_ = 2.0 * kBytes / (us * 1e-6);
  Report({.name = "copy_bandwidth",
          .value = copy_bytes_per_second_ * 1e-9,
          .unit = "GB/s",
          .anchor = "none",
          .anchor_value = 0,
          .ratio = 1});
  return copy_bytes_per_second_;
}

void GpuBench::Report(const BenchRow& row) {
  std::printf("%-44s %10.2f %-8s %6.3f of %-20s %10.2f\n", row.name.c_str(), row.value,
              row.unit.c_str(), row.ratio, row.anchor.c_str(), row.anchor_value);
  std::fflush(stdout);
  rows_.push_back(row);
}

void GpuBench::ReportBytes(const std::string& name, double us, double bytes) {
  const double anchor = CopyBytesPerSecond();
  Report({.name = name,
          .value = us,
          .unit = "us",
          .anchor = "copy bandwidth",
          .anchor_value = bytes / anchor * 1e6,
          .ratio = bytes / anchor * 1e6 / us});
}

void GpuBench::ReportFlops(const std::string& name, double us, double flops,
                           const std::string& anchor, double anchor_tflops) {
  const double tflops = flops / us * 1e-6;
  Report({.name = name,
          .value = tflops,
          .unit = "TFLOP/s",
          .anchor = anchor,
          .anchor_value = anchor == "none" ? 0 : anchor_tflops,
          .ratio = anchor == "none" ? 0 : tflops / anchor_tflops});
}

void GpuBench::ReportProduct(const std::string& name, double us, double flops) {
  const double anchor = Anchor("cublas_8192");
  ReportFlops(name, us, flops, anchor > 0 ? "cuBLAS 8192^3" : "none", anchor);
}

void* DeviceAllocate(size_t bytes) {
  void* memory = nullptr;
  Require(cudaMalloc(&memory, bytes), "cudaMalloc");
  Require(cudaMemset(memory, 0, bytes), "cudaMemset");
  return memory;
}

void CopyToDevice(void* device, const void* host, size_t bytes) {
  Require(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void* RandomDeviceHalves(HalfType type, size_t count, float scale, uint64_t seed) {
  // A random pattern of 4 Mi values, repeated: the host is slow, and no cache holds it.
  constexpr size_t kPattern = size_t{1} << 22;
  const std::vector<uint16_t> pattern =
      HalvesFromFloats(type, RandomHalves(type, std::min(count, kPattern), scale, seed));
  void* memory = DeviceAllocate(count * 2);
  for (size_t i = 0; i < count; i += kPattern) {
    CopyToDevice(static_cast<uint16_t*>(memory) + i, pattern.data(),
                 std::min(kPattern, count - i) * 2);
  }
  return memory;
}

int RunBenches(int argc, char** argv) {
  if (!GpuIsUsable()) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  const std::regex filter(argc > 1 ? argv[1] : "");
  CudaStream stream = nullptr;
  Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  GpuBench bench(stream);
  for (const Registered& registered : Benches()) {
    if (std::regex_search(registered.name, filter)) registered.function(bench);
  }
  if (argc > 2) WriteJson(argv[2], bench.rows(), "gpu_bench");
  return 0;
}

}  // namespace baton::kernels::testing

// gpu_bench [REGEX [JSON_FILE]]
int main(int argc, char** argv) { return baton::kernels::testing::RunBenches(argc, argv); }
