// Time of SampleCuda by batch and parameters, in a graph, beside the time that one read of the
// logits takes at the copy bandwidth. Logits of a decode step come from the L2 cache, and inputs
// rotate beyond it here, so a step does no worse.
#include "kernels/sampling/sampling_cuda.h"

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

constexpr int32_t kVocab = 128256;
constexpr int64_t kRowsMax = 64;
constexpr int kBuffers = 4;  // Of 33 MB.
constexpr int kCalls = 40;

struct Case {
  const char* name;
  SampleParams params;
  bool peaked = false;  // A token of probability of about 0.99, as text models often have.
};

std::vector<Case> Cases() {
  return {{"greedy", {}},
          {"greedy_top5", {.logprobs = true, .num_top_logprobs = 5}},
          {"temperature", {.temperature = 0.8f}},
          {"top_k40", {.temperature = 0.8f, .top_k = 40}},
          {"top_p95", {.temperature = 0.8f, .top_p = 0.95f}},
          {"k40_p95", {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}},
          {"all_top20",
           {.temperature = 0.8f,
            .top_k = 40,
            .top_p = 0.95f,
            .min_p = 0.05f,
            .logprobs = true,
            .num_top_logprobs = 20}},
          {"temperature_peaked", {.temperature = 0.8f}, true},
          {"top_p95_peaked", {.temperature = 0.8f, .top_p = 0.95f}, true},
          {"k40_p95_peaked", {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}, true}};
}

BATON_GPU_BENCH(sampling) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> host(static_cast<size_t>(kRowsMax) * kVocab);
  for (float& v : host) v = normal(rng);
  float* flat[kBuffers];
  float* peaked[kBuffers];
  for (int i = 0; i < 2 * kBuffers; ++i) {
    float*& buffer = i < kBuffers ? flat[i] : peaked[i - kBuffers];
    if (i == kBuffers) {
      for (int64_t r = 0; r < kRowsMax; ++r) host[static_cast<size_t>(r * kVocab + 77 * r)] = 18;
    }
    buffer = static_cast<float*>(DeviceAllocate(host.size() * sizeof(float)));
    CopyToDevice(buffer, host.data(), host.size() * sizeof(float));
  }
  auto* params = static_cast<SampleParams*>(DeviceAllocate(kRowsMax * sizeof(SampleParams)));
  auto* results = static_cast<SampleResult*>(DeviceAllocate(kRowsMax * sizeof(SampleResult)));
  auto* tokens = static_cast<int32_t*>(DeviceAllocate(kRowsMax * sizeof(int32_t)));
  for (const Case& c : Cases()) {
    float* const* logits = c.peaked ? peaked : flat;
    std::vector<SampleParams> rows(kRowsMax, c.params);
    for (size_t r = 0; r < rows.size(); ++r) rows[r].noise.seed = r;
    CopyToDevice(params, rows.data(), rows.size() * sizeof(SampleParams));
    for (const int64_t num_rows : {1, 8, 64}) {
      const auto run = [&](int i, CudaStream stream) {
        // Few rows walk through the buffers, so that none is read twice soon.
        const int64_t slot = i / kBuffers * num_rows % kRowsMax;
        SampleCuda({.logits = logits[i % kBuffers] + slot * kVocab,
                    .params = params,
                    .results = results,
                    .last_samples = tokens,
                    .rows = num_rows,
                    .stride = kVocab,
                    .vocab = kVocab},
                   stream, LaunchOrder::kOverlapped);
      };
      bench.ReportBytes("sampling/" + std::string(c.name) + "/rows" + std::to_string(num_rows),
                        bench.MedianMicrosecondsInGraph(run, kCalls),
                        4.0 * static_cast<double>(num_rows) * kVocab);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
