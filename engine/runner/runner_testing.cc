#include "engine/runner/runner_testing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr Duration kStepLimit = std::chrono::minutes(5);

}  // namespace

std::string CarriedModel(const std::string& name) { return "models/" + name; }

std::string SharedData() {
  const char* from_environment = std::getenv("BATON_SHARED_DATA");
  const std::string folder = from_environment != nullptr ? from_environment : "../shared/data";
  return std::filesystem::is_directory(folder) ? folder : "";
}

std::string Prose22M() {
  const std::string shared = SharedData();
  return shared.empty() ? "" : shared + "/models/prose-22m";
}

std::unique_ptr<CpuDevice> MakeCpuDevice(int threads) {
  auto device = CpuDevice::Create({.threads = threads});
  CHECK(device.ok()) << device.status();
  return *std::move(device);
}

LoadedModel LoadOrDie(const std::string& directory, const LoadOptions& options, Device& device) {
  auto model = LoadModel(directory, options, device);
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

std::vector<BlockId> BlockRange(int32_t begin, int32_t end) {
  std::vector<BlockId> blocks;
  for (int32_t i = begin; i < end; ++i) blocks.emplace_back(i);
  return blocks;
}

StepResult RunStep(ModelRunner& runner, const StepBatch& batch) {
  const auto ticket = runner.Execute(batch);
  CHECK(ticket.ok()) << ticket.status();
  auto result = runner.Wait(*ticket, kStepLimit);
  CHECK(result.ok()) << result.status();
  return *std::move(result);
}

std::vector<SampledToken> Generate(ModelRunner& runner, const std::vector<int32_t>& prompt,
                                   const std::vector<BlockId>& blocks,
                                   const GenerateOptions& options) {
  std::vector<SampledToken> generated;
  SequenceStep step{.block_table = blocks, .sampling = options.sampling};
  for (size_t at = 0; at < prompt.size(); at += step.token_ids.size()) {
    const size_t n = std::min(prompt.size() - at, static_cast<size_t>(options.chunk_tokens));
    step.start_position = static_cast<int32_t>(at);
    step.token_ids.assign(prompt.begin() + static_cast<ptrdiff_t>(at),
                          prompt.begin() + static_cast<ptrdiff_t>(at + n));
    step.sample = at + n == prompt.size();
    StepResult result = RunStep(runner, {{step}});
    if (step.sample) generated.push_back(std::move(result.samples[0]));
  }
  while (static_cast<int>(generated.size()) < options.num_tokens) {
    step.start_position += static_cast<int32_t>(step.token_ids.size());
    step.token_ids = {generated.back().token_id};
    generated.push_back(std::move(RunStep(runner, {{step}}).samples[0]));
  }
  return generated;
}

std::vector<int32_t> TokenIds(const std::vector<SampledToken>& tokens) {
  std::vector<int32_t> ids;
  for (const SampledToken& token : tokens) ids.push_back(token.token_id);
  return ids;
}

std::vector<float> AllLogits(ModelRunner& runner, const std::vector<int32_t>& tokens,
                             const std::vector<BlockId>& blocks, int32_t chunk_tokens) {
  std::vector<float> logits;
  const auto chunk = static_cast<size_t>(chunk_tokens);
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    std::vector<int32_t> rows(n);
    std::iota(rows.begin(), rows.end(), 0);
    auto part =
        runner.ComputeLogits({.start_position = static_cast<int32_t>(at),
                              .token_ids = {tokens.begin() + static_cast<ptrdiff_t>(at),
                                            tokens.begin() + static_cast<ptrdiff_t>(at + n)},
                              .block_table = blocks},
                             rows);
    CHECK(part.ok()) << part.status();
    logits.insert(logits.end(), part->begin(), part->end());
  }
  return logits;
}

double MeanNegativeLogLikelihood(const LoadedModel& model, const std::vector<int32_t>& text,
                                 size_t window) {
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  const auto num_blocks = static_cast<int32_t>(window) / model.layout.block_tokens + 1;
  double sum = 0;
  int64_t count = 0;
  for (size_t first = 0; first + window <= text.size(); first += window) {
    const auto begin = text.begin() + static_cast<ptrdiff_t>(first);
    const std::vector<int32_t> ids(begin, begin + static_cast<ptrdiff_t>(window));
    const auto logits = AllLogits(*model.runner, ids, BlockRange(0, num_blocks), 512);
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      const float* row = logits.data() + t * vocab;
      const double largest = *std::max_element(row, row + vocab);
      double exponentials = 0;
      for (size_t i = 0; i < vocab; ++i) exponentials += std::exp(row[i] - largest);
      sum += largest + std::log(exponentials) - row[ids[t + 1]];
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

std::vector<int32_t> ReadTokenIds(const std::string& path) {
  std::ifstream file(path);
  std::vector<int32_t> ids;
  for (int32_t id = 0; file >> id;) ids.push_back(id);
  return ids;
}

}  // namespace baton
