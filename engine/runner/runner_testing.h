// Helpers of the tests and benchmarks that run models: where models are, and generation one request
// at a time.
#ifndef BATON_ENGINE_RUNNER_RUNNER_TESTING_H_
#define BATON_ENGINE_RUNNER_RUNNER_TESTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "engine/runner/model_runner.h"

namespace baton {

// Of a model that the repository carries (models/); tests run in the root of the repository.
std::string CarriedModel(const std::string& name);
// Folder of the data that the repository does not carry: $BATON_SHARED_DATA, by default
// ../shared/data. Empty if there is none: tests that need it are skipped.
std::string SharedData();
// The model of 22 million parameters, too large for the repository. Empty without SharedData().
std::string Prose22M();

// Both end the process when they fail: tests that expect errors call the product's functions.
std::unique_ptr<CpuDevice> MakeCpuDevice(int threads);
LoadedModel LoadOrDie(const std::string& directory, const LoadOptions& options, Device& device);

std::vector<BlockId> BlockRange(int32_t begin, int32_t end);

// Executes one step and waits for it.
StepResult RunStep(ModelRunner& runner, const StepBatch& batch);

struct GenerateOptions {
  int num_tokens = 16;
  SamplingParams sampling = {};
  int32_t chunk_tokens = 512;  // Of the prompt.
};
// Tokens generated after `prompt` in the given blocks.
std::vector<SampledToken> Generate(ModelRunner& runner, const std::vector<int32_t>& prompt,
                                   const std::vector<BlockId>& blocks,
                                   const GenerateOptions& options);
std::vector<int32_t> TokenIds(const std::vector<SampledToken>& tokens);

// Logits of every token of a prompt, [tokens, vocab], computed `chunk_tokens` at a time.
std::vector<float> AllLogits(ModelRunner& runner, const std::vector<int32_t>& tokens,
                             const std::vector<BlockId>& blocks, int32_t chunk_tokens);

// Mean negative log-likelihood of each next token of `text`, cut into windows that are computed
// alone. REQUIRES: sequences_max of the model >= window.
double MeanNegativeLogLikelihood(const LoadedModel& model, const std::vector<int32_t>& text,
                                 size_t window);
// Whitespace-separated ids of a file.
std::vector<int32_t> ReadTokenIds(const std::string& path);

}  // namespace baton

#endif  // BATON_ENGINE_RUNNER_RUNNER_TESTING_H_
