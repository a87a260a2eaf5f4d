// Tokens per second of a whole model on the CPU device:
//   model_bench MODEL_DIR [THREADS]
// Prefill: one prompt of 512 tokens (or the context, if shorter). Decode: batches of 1, 4 and 16 at
// a context of 128. Says what share of the arithmetic and of the weights' bandwidth that is.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/runner/model_runner.h"
#include "engine/runner/runner_testing.h"

namespace baton {
namespace {

constexpr int32_t kDecodeContext = 128;
constexpr double kSecondsPerFigure = 2;

std::vector<int32_t> Prompt(int32_t tokens, int32_t vocab) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < tokens; ++i) ids.push_back((i * 7919 + 13) % vocab);
  return ids;
}

// Of all threads: on a busy machine the wall clock says little.
double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double Seconds(TimePoint from) { return ToSeconds(Clock::Real()->Now() - from); }

void Prefill(LoadedModel& model) {
  const int32_t tokens = std::min(512, model.runner->limits().context_tokens_max);
  SequenceStep step{.token_ids = Prompt(tokens, model.config.vocab_size),
                    .block_table = BlockRange(0, (tokens + 15) / 16),
                    .sample = true};
  RunStep(*model.runner, {{step}});
  int steps = 0;
  const double cpu_start = CpuSeconds();
  const TimePoint start = Clock::Real()->Now();
  while (Seconds(start) < kSecondsPerFigure) {
    RunStep(*model.runner, {{step}});
    ++steps;
  }
  std::printf("prefill, %d tokens: %.0f tokens/s, %.2f CPU ms a step\n", tokens,
              steps * tokens / Seconds(start), 1e3 * (CpuSeconds() - cpu_start) / steps);
}

void Decode(LoadedModel& model, int32_t batch_size) {
  const int32_t blocks = kDecodeContext / 16;
  StepBatch batch;
  for (int32_t i = 0; i < batch_size; ++i) {
    SequenceStep step{.token_ids = Prompt(kDecodeContext - 1, model.config.vocab_size),
                      .block_table = BlockRange(i * blocks, (i + 1) * blocks)};
    RunStep(*model.runner, {{step}});
    step.start_position = kDecodeContext - 1;
    step.token_ids = {1};
    step.sample = true;
    batch.sequences.push_back(step);
  }
  RunStep(*model.runner, batch);
  int steps = 0;
  const double cpu_start = CpuSeconds();
  const TimePoint start = Clock::Real()->Now();
  while (Seconds(start) < kSecondsPerFigure) {
    RunStep(*model.runner, batch);
    ++steps;
  }
  const double rate = steps / Seconds(start);
  const double cpu_ms = 1e3 * (CpuSeconds() - cpu_start) / steps;
  std::printf(
      "decode, batch %2d, context %d: %.0f tokens/s, %.2f ms (%.3f CPU ms) a step, weights at "
      "%.1f GB/s\n",
      batch_size, kDecodeContext, rate * batch_size, 1e3 / rate, cpu_ms,
      rate * static_cast<double>(model.weight_bytes) * 1e-9);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL_DIR [THREADS]\n", argv[0]);
    return 2;
  }
  auto device = MakeCpuDevice(argc > 2 ? std::atoi(argv[2]) : 0);
  LoadedModel model = LoadOrDie(argv[1], {.block_tokens = 16}, *device);
  std::printf("%s: %.1f MB of weights, %d threads, %.1f MB of activations\n", argv[1],
              static_cast<double>(model.weight_bytes) * 1e-6, device->threads(),
              static_cast<double>(model.runner->workspace_bytes()) * 1e-6);
  Prefill(model);
  for (const int32_t batch : {1, 4, 16}) Decode(model, batch);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
