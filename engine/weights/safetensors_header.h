// The JSON header of a safetensors file, as parsed: syntax and fields are checked, sizes and
// offsets are not yet compared with anything (safetensors.cc does that).
//
// Thread-safe: pure function.
#ifndef BATON_ENGINE_WEIGHTS_SAFETENSORS_HEADER_H_
#define BATON_ENGINE_WEIGHTS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"

namespace baton {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // offsets into the data section
  uint64_t end = 0;
};

// Entries in the order of the header; names are not empty and at most kTensorNameBytesMax bytes,
// but may repeat. ERRORS: InvalidArgument naming the tensor: not JSON, wrong type, unknown dtype,
// unknown, missing or repeated field, negative or fractional number, a limit of safetensors.h
// exceeded.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(absl::string_view header);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_SAFETENSORS_HEADER_H_
