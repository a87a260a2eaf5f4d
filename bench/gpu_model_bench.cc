// The whole step of models on a GPU, through the runner that engine loops use: decode at several
// batch sizes, prefill, and time to load. Part of gpu_bench. Floors: bytes of weights and KV over
// the copy bandwidth of the same run; for products of many rows, FLOPs over the rate of a large
// product (BATON_ANCHORS of gpu_anchors.py, otherwise what this hardware was measured at).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "device/device_plugin.h"
#include "engine/runner/model_runner.h"
#include "kernels/launch/gpu_bench_harness.h"
#include "tests/gpu/gpu_testing.h"

namespace baton {
namespace {

using kernels::testing::GpuBench;

constexpr double kProductFlops = 790e12;
constexpr Duration kStepLimit = std::chrono::minutes(1);
constexpr int32_t kContext = 1024;
constexpr int32_t kBlockTokens = 64;
constexpr int kSteps = 48;
constexpr int32_t kBatchMax = 256;
constexpr int32_t kPrefillTokens = 4096;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<int32_t> RandomIds(size_t count, int32_t vocab, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab)));
  }
  return ids;
}

// A model with sequences whose KV has been computed.
class Bed {
 public:
  Bed(Device& device, const std::string& path, bool greedy) : greedy_(greedy) {
    const TimePoint start = Clock::Real()->Now();
    LoadOptions options;
    options.kv_memory_bytes = int64_t{56} << 30;
    options.block_tokens = kBlockTokens;
    options.tokens_max = 8192;
    options.sequences_max = kBatchMax;
    options.context_tokens = 8192;
    auto model = LoadModel(path, options, device);
    CHECK(model.ok()) << model.status();
    model_ = *std::move(model);
    load_seconds_ = ToSeconds(Clock::Real()->Now() - start);
  }

  double load_seconds() const { return load_seconds_; }
  const LoadedModel& model() const { return model_; }

  // Sequence s owns blocks of its own for context and generation.
  SequenceStep Sequence(int32_t s) const {
    constexpr int32_t kBlocks = (kContext + 512) / kBlockTokens;
    SequenceStep step;
    for (int32_t i = 0; i < kBlocks; ++i) step.block_table.emplace_back(s * kBlocks + i);
    step.sampling.temperature = greedy_ ? 0.0f : 1.0f;
    step.sampling.seed = static_cast<uint64_t>(s);
    return step;
  }

  void Prefill(int32_t sequences) {
    constexpr int32_t kAtOnce = 8192 / kContext;
    for (int32_t first = 0; first < sequences; first += kAtOnce) {
      StepBatch batch;
      for (int32_t s = first; s < std::min(sequences, first + kAtOnce); ++s) {
        SequenceStep step = Sequence(s);
        step.token_ids = RandomIds(kContext, model_.config.vocab_size, 7u + s);
        batch.sequences.push_back(std::move(step));
      }
      Run(batch);
    }
  }

  // Seconds a step, two in flight as in an engine loop.
  double DecodeSeconds(int32_t batch_size) {
    StepBatch batch;
    for (int32_t s = 0; s < batch_size; ++s) {
      SequenceStep step = Sequence(s);
      step.start_position = kContext;
      step.token_ids = {5 + s};
      step.sample = true;
      batch.sequences.push_back(std::move(step));
    }
    StepTicket waiting = Execute(batch);
    std::vector<double> times;
    TimePoint last = Clock::Real()->Now();
    for (int i = 0; i < kSteps; ++i) {
      for (int32_t s = 0; s < batch_size; ++s) {
        SequenceStep& step = batch.sequences[static_cast<size_t>(s)];
        ++step.start_position;
        step.token_ids.clear();
        step.from_previous_step = true;
        step.previous_sample = s;
      }
      const StepTicket next = Execute(batch);
      Wait(waiting);
      const TimePoint now = Clock::Real()->Now();
      if (i >= 8) times.push_back(ToSeconds(now - last));  // The first are warm-up and capture.
      last = now;
      waiting = next;
    }
    Wait(waiting);
    return Median(times);
  }

  double PrefillSeconds(int32_t tokens) {
    std::vector<double> times;
    for (uint32_t i = 0; i < 7; ++i) {
      StepBatch batch;
      SequenceStep step;
      for (int32_t b = 0; b < tokens / kBlockTokens + 1; ++b) step.block_table.emplace_back(b);
      step.token_ids = RandomIds(static_cast<size_t>(tokens), model_.config.vocab_size, i);
      step.sample = true;
      batch.sequences.push_back(std::move(step));
      const TimePoint start = Clock::Real()->Now();
      Run(batch);
      times.push_back(ToSeconds(Clock::Real()->Now() - start));
    }
    return Median(times);
  }

 private:
  StepTicket Execute(const StepBatch& batch) {
    const auto ticket = model_.runner->Execute(batch);
    CHECK(ticket.ok()) << ticket.status();
    return *ticket;
  }
  void Wait(StepTicket ticket) {
    const auto result = model_.runner->Wait(ticket, kStepLimit);
    CHECK(result.ok()) << result.status();
    for (const SampledToken& token : result->samples) CHECK(token.finite);
  }
  void Run(const StepBatch& batch) { Wait(Execute(batch)); }

  const bool greedy_;
  LoadedModel model_;
  double load_seconds_ = 0;
};

void ReportDecode(GpuBench& bench, Bed& bed, const std::string& name, int32_t batch) {
  const ModelConfig& config = bed.model().config;
  const double copy = bench.CopyBytesPerSecond();
  // The embedding is read row by row; a head that is the embedding is read in whole.
  const double embedding = 2.0 * config.vocab_size * config.hidden_size;
  const double weights =
      static_cast<double>(bed.model().weight_bytes) - (config.tie_word_embeddings ? 0 : embedding);
  const double kv = static_cast<double>(batch) * (kContext + kSteps / 2) *
                    static_cast<double>(bed.model().layout.block_bytes()) / kBlockTokens;
  const double products = 2.0 * batch * weights / 2 / kProductFlops;
  const double floor = std::max(weights / copy, products) + kv / copy;
  const double seconds = bed.DecodeSeconds(batch);
  bench.Report({.name = name,
                .value = seconds * 1e3,
                .unit = "ms",
                .anchor = "floor (bytes, products)",
                .anchor_value = floor * 1e3,
                .ratio = floor / seconds});
}

void BenchModel(GpuBench& bench, const std::string& shape, const std::string& label,
                bool deterministic) {
  PluginDeviceOptions options;
  options.deterministic = deterministic;
  const char* cache = std::getenv("BATON_CACHE");
  options.cache_directory = cache != nullptr ? cache : "";
  auto device = MakeCudaDevice(options);
  Bed bed(*device, "synthetic:" + shape, true);
  bench.Report({.name = "load_" + label + "_seconds",
                .value = bed.load_seconds(),
                .unit = "s",
                .anchor = "none",
                .anchor_value = 0,
                .ratio = 0});
  bed.Prefill(kBatchMax);
  for (const int32_t batch : {1, 8, 64, 256}) {
    ReportDecode(bench, bed, "decode_step_" + label + "_b" + std::to_string(batch), batch);
  }
  const double seconds = bed.PrefillSeconds(kPrefillTokens);
  const ModelConfig& config = bed.model().config;
  const double parameters_of_layers =
      static_cast<double>(bed.model().weight_bytes) / 2 -
      (config.tie_word_embeddings ? 1.0 : 2.0) * config.vocab_size * config.hidden_size;
  const double attention = 2.0 * kPrefillTokens * kPrefillTokens * config.num_heads *
                           config.head_dim * config.num_layers;
  // The rate of the best attention kernels that were published for this chip.
  const double floor =
      2 * parameters_of_layers * kPrefillTokens / kProductFlops + attention / 600e12;
  bench.Report({.name = "prefill_" + label + "_4k",
                .value = kPrefillTokens / seconds,
                .unit = "tok/s",
                .anchor = "floor (products, FA3)",
                .anchor_value = kPrefillTokens / floor,
                .ratio = floor / seconds});
  const ProgramStats stats = bed.model().runner->stats();
  std::printf("# %s: %llu steps, %llu kernel launches, %llu graphs, KV %d blocks\n", label.c_str(),
              static_cast<unsigned long long>(stats.steps),
              static_cast<unsigned long long>(stats.kernel_launches),
              static_cast<unsigned long long>(stats.graphs), bed.model().kv->num_blocks());
}

BATON_GPU_BENCH(model_8b) { BenchModel(bench, "llama3-8b", "8b", false); }
BATON_GPU_BENCH(model_1b) { BenchModel(bench, "llama3-1b", "1b", false); }
BATON_GPU_BENCH(model_8b_deterministic) {
  BenchModel(bench, "llama3-8b", "8b_deterministic", true);
}

}  // namespace
}  // namespace baton
