// One safetensors file: u64 little-endian header length, JSON header, data section
// (format: https://github.com/huggingface/safetensors, README, "Format").
//
// What is checked before anything is believed, beyond what the reference reader checks:
// - the header is at most 100,000,000 bytes, begins with '{' and ends inside the file; nothing is
//   allocated before that;
// - no tensor, field or metadata key occurs twice; nothing but dtype, shape and data_offsets
// occurs;
// - every dtype is known; shape x dtype equals end - begin, in arithmetic that cannot wrap;
// - the tensors cover the data section exactly: no hole, no overlap, no byte after the last one.
//
// Thread-safe: immutable after Open or Parse. The bytes of a file that is truncated later are lost
// with SIGBUS (mapped_file.h).
#ifndef BATON_ENGINE_WEIGHTS_SAFETENSORS_H_
#define BATON_ENGINE_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/dtype.h"
#include "engine/weights/mapped_file.h"

namespace baton {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr size_t kSafetensorsTensorsMax = size_t{1} << 18;  // in one file
inline constexpr size_t kTensorRankMax = 16;
inline constexpr size_t kTensorNameBytesMax = 1024;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major, slowest dimension first; empty for a scalar
  // Little-endian elements, product(shape) * DTypeBytes(dtype) bytes, of any alignment: copy them
  // with memcpy. Belongs to the file.
  absl::Span<const std::byte> data;
};

class SafetensorsFile {
  struct Private {};

 public:
  // Maps the file and reads its header; tensor data is touched only when somebody reads it.
  // ERRORS: InvalidArgument naming file and tensor: malformed (see above).
  // FailedPrecondition naming file and tensor: missing, unreadable, or shorter than its header says
  // (an interrupted download).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  // The same for bytes in memory, which must outlive the result. `name` is used in errors.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(absl::Span<const std::byte> bytes,
                                                                std::string name);

  explicit SafetensorsFile(Private) {}
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& name() const { return name_; }
  // In the order of their data.
  absl::Span<const TensorInfo> tensors() const { return tensors_; }
  // Null when there is no tensor of that name.
  const TensorInfo* Find(absl::string_view tensor) const;
  uint64_t file_bytes() const { return bytes_.size(); }
  // The JSON header as stored.
  absl::string_view header() const { return header_; }

 private:
  absl::Status Read();

  std::string name_;
  std::optional<MappedFile> mapping_;  // absent after Parse
  absl::Span<const std::byte> bytes_;
  absl::string_view header_;
  std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> index_;  // name -> position in tensors_
};

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_SAFETENSORS_H_
