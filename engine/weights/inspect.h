// What a model file or directory holds, read from configs and headers only: for `baton inspect`.
//
// Thread-safe: pure functions over files.
#ifndef BATON_ENGINE_WEIGHTS_INSPECT_H_
#define BATON_ENGINE_WEIGHTS_INSPECT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "engine/weights/model_config.h"

namespace baton {

struct InspectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};

struct InspectReport {
  std::string path;
  // Absent for a bare .safetensors file.
  std::optional<ModelConfig> config;
  // Of a directory: whether the tensors are those that the config asks for.
  absl::Status tensors_valid;
  std::string revision;
  int32_t num_files = 0;
  uint64_t file_bytes = 0;
  // Elements and bytes of all tensors. An embedding that is also the head is stored, and counted,
  // once.
  uint64_t parameter_count = 0;
  uint64_t weight_bytes = 0;
  std::vector<InspectedTensor> tensors;  // by name

  // Aligned text for people, ends with a newline.
  std::string ToText() const;
  // One JSON object; keys are those of the fields above and of config.json.
  std::string ToJson() const;
};

// `path`: a model directory or a .safetensors file. No tensor data is read but the samples for the
// revision (checkpoint.h).
// ERRORS: those of ReadModelConfig and Checkpoint::Open. A checkpoint that does not fit its config
// is no error: tensors_valid says what is wrong.
absl::StatusOr<InspectReport> InspectModel(const std::string& path);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_INSPECT_H_
