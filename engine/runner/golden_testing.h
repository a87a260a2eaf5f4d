// Comparisons with golden values that hold on every device, each to its own tolerance.
#ifndef BATON_ENGINE_RUNNER_GOLDEN_TESTING_H_
#define BATON_ENGINE_RUNNER_GOLDEN_TESTING_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "device/device.h"
#include "nlohmann/json.hpp"

namespace baton {

// Fails the test when there is no such file.
nlohmann::json ReadGolden(const std::string& path);

// Largest difference, relative to the largest magnitude of the expected row; infinite when `actual`
// holds a NaN or an infinity.
double RelativeError(absl::Span<const float> actual, const std::vector<double>& expected);

// Logits of every model of tests/golden/tiny_llama against transformers'.
void ExpectTinyLlamas(Device& device, double tolerance);

// SUCC plays its script; WITNESS's logits are as the counts of its context (models/README.md).
void ExpectSuccAndWitness(Device& device, double tolerance);

}  // namespace baton

#endif  // BATON_ENGINE_RUNNER_GOLDEN_TESTING_H_
