// Models without files, for benchmarks: the shape of a known model, random weights that the device
// makes, and a tokenizer of bytes. Named "synthetic:llama3-8b" where a directory would stand. What
// they generate means nothing.
#ifndef BATON_ENGINE_MODEL_SYNTHETIC_H_
#define BATON_ENGINE_MODEL_SYNTHETIC_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/weight_source.h"
#include "engine/weights/model_config.h"

namespace baton {

// Whether `path` names a synthetic model.
bool IsSyntheticModel(absl::string_view path);

// ERRORS: InvalidArgument listing the shapes there are.
absl::StatusOr<ModelConfig> SyntheticModelConfig(absl::string_view path);

// A tokenizer.json in which every id below `vocab_size` has a token: the first 256 are bytes.
std::string SyntheticTokenizerJson(int32_t vocab_size);

class SyntheticSource : public WeightSource {
 public:
  explicit SyntheticSource(const ModelConfig& config);
  absl::StatusOr<WeightSegment> Segment(const std::string& name) const override;

 private:
  struct Shape {
    int64_t rows = 0;
    int64_t cols = 0;
    uint64_t seed = 0;
  };
  absl::flat_hash_map<std::string, Shape> shapes_;
  std::vector<float> ones_;  // Gammas.
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_SYNTHETIC_H_
