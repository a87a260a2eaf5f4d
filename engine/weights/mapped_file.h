// A regular file mapped read-only. Its size is fixed when it is opened.
//
// Thread-safe: immutable after Open. The bytes live as long as the object.
// A file that is truncated by somebody else while it is mapped raises SIGBUS on the next access to
// the lost pages, as with every mapping: model files must be replaced by renaming a new file over
// them, never written in place. Sizes are checked when a file is opened, not afterwards.
#ifndef BATON_ENGINE_WEIGHTS_MAPPED_FILE_H_
#define BATON_ENGINE_WEIGHTS_MAPPED_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

class MappedFile {
 public:
  // ERRORS: FailedPrecondition, naming the path: it does not exist, is no regular file, may not be
  // read, or cannot be mapped.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Empty for an empty file.
  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  absl::Span<const std::byte> bytes_;
};

// The whole of a small text file.
// ERRORS: NotFound when there is no such file; FailedPrecondition, naming the path: not a regular
// file, may not be read, or larger than size_max bytes (nothing is allocated then).
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t size_max);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_MAPPED_FILE_H_
