// The tensors of a model: a directory with model.safetensors, or shards with
// model.safetensors.index.json, or one bare .safetensors file.
//
// Rules for directories (documented behaviour; transformers' where it has one):
// - model.safetensors wins over an index, as in transformers;
// - the index is believed exactly: each tensor lies in the file it names, each file holds no other
//   tensor, file names are plain names in the directory;
// - .safetensors files that the index does not name are not read (a warning is logged);
// - shards without an index are refused;
// - metadata.total_size of the index is not compared: writers disagree on what it counts.
//
// Thread-safe: immutable after Open. Tensors live as long as the checkpoint.
#ifndef BATON_ENGINE_WEIGHTS_CHECKPOINT_H_
#define BATON_ENGINE_WEIGHTS_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/weights/safetensors.h"

namespace baton {

inline constexpr size_t kCheckpointTensorsMax = size_t{1} << 20;
inline constexpr size_t kCheckpointFilesMax = 4096;

class Checkpoint {
  struct Private {};

 public:
  // Maps every file and checks every header before it returns; no tensor data is read but the
  // samples for revision(). `path`: a model directory or a .safetensors file.
  // ERRORS: InvalidArgument naming file and tensor: malformed index or file.
  // FailedPrecondition naming the file, and the tensor where one is concerned: a file is missing,
  // truncated, outside the directory, or does not hold what the index says.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  explicit Checkpoint(Private) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Null when there is no tensor of that name.
  const TensorInfo* Find(absl::string_view name) const;
  // File by file, each in the order of its data.
  absl::Span<const TensorInfo* const> tensors() const { return tensors_; }
  absl::Span<const std::unique_ptr<SafetensorsFile>> files() const { return files_; }
  // Sum of the tensors' bytes.
  uint64_t total_bytes() const { return total_bytes_; }

  // Content revision: SHA-256 in hex (64 characters), equal on every machine for equal files.
  // Covers config.json and generation_config.json as bytes, each file's name, size and whole
  // header, and 1 KiB from the middle of every tensor (all of it when smaller). So it tells two
  // fine-tunes of one architecture apart without reading gigabytes; it is no proof of integrity.
  const std::string& revision() const { return revision_; }

 private:
  absl::Status OpenSingle(const std::string& path);
  absl::Status OpenSharded(const std::string& directory, const std::string& index_text);
  absl::Status AddTensors(const SafetensorsFile& file);
  absl::Status ComputeRevision(const std::string& directory);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<const TensorInfo*> tensors_;
  absl::flat_hash_map<absl::string_view, const TensorInfo*> index_;
  uint64_t total_bytes_ = 0;
  std::string revision_;
};

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_CHECKPOINT_H_
