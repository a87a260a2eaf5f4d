// Files that routers need (tokenizer, its configuration), held in memory and served by digest.
// Immutable after construction, so thread-safe.
#ifndef BATON_WORKER_ARTIFACTS_H_
#define BATON_WORKER_ARTIFACTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/worker/v1/session.pb.h"

namespace baton::worker {

// Bytes of one ArtifactChunk at most (session.proto).
inline constexpr int64_t kArtifactChunkBytes = 256 << 10;
// A file larger than this is refused when the model is loaded.
inline constexpr int64_t kArtifactBytesMax = 64 << 20;

// SHA-256 of `bytes`, 32 raw bytes.
std::string Sha256(absl::string_view bytes);

class ArtifactStore {
 public:
  // Reads tokenizer.json, tokenizer.model and tokenizer_config.json of a model directory, those
  // that are there, and returns what a ModelDescription lists. ERRORS: NotFound when there is
  // neither tokenizer.json nor tokenizer.model; ResourceExhausted naming a file that is too large;
  // Unavailable when a file cannot be read.
  absl::StatusOr<std::vector<v1::Artifact>> AddModelDirectory(const std::string& directory);
  // One artifact from memory.
  v1::Artifact Add(v1::ArtifactKind kind, std::string bytes);

  // The piece of an artifact that starts at `offset`; `unknown` is set when there is no such piece.
  v1::ArtifactChunk Chunk(const std::string& digest, int64_t offset) const;

 private:
  std::map<std::string, std::string> by_digest_;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_ARTIFACTS_H_
