#include "worker/artifacts.h"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, uintmax_t size) {
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return absl::UnavailableError(absl::StrCat(path.string(), ": cannot be read"));
  }
  return bytes;
}

}  // namespace

std::string Sha256(absl::string_view bytes) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 EVP_sha256(), nullptr);
  CHECK_EQ(ok, 1) << "SHA-256 is part of every OpenSSL";
  digest.resize(size);
  return digest;
}

absl::StatusOr<std::vector<v1::Artifact>> ArtifactStore::AddModelDirectory(
    const std::string& directory) {
  constexpr std::pair<const char*, v1::ArtifactKind> kFiles[] = {
      {"tokenizer.json", v1::ARTIFACT_KIND_TOKENIZER_JSON},
      {"tokenizer.model", v1::ARTIFACT_KIND_TOKENIZER_MODEL},
      {"tokenizer_config.json", v1::ARTIFACT_KIND_TOKENIZER_CONFIG},
  };
  std::vector<v1::Artifact> artifacts;
  bool has_tokenizer = false;
  for (const auto& [name, kind] : kFiles) {
    const std::filesystem::path path = std::filesystem::path(directory) / name;
    std::error_code error;
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error) continue;
    if (size > static_cast<uintmax_t>(kArtifactBytesMax)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path.string(), ": ", size, " bytes, at most ", kArtifactBytesMax));
    }
    ASSIGN_OR_RETURN(std::string bytes, ReadFile(path, size));
    artifacts.push_back(Add(kind, std::move(bytes)));
    has_tokenizer = has_tokenizer || kind != v1::ARTIFACT_KIND_TOKENIZER_CONFIG;
  }
  if (!has_tokenizer) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": neither tokenizer.json nor tokenizer.model"));
  }
  return artifacts;
}

v1::Artifact ArtifactStore::Add(v1::ArtifactKind kind, std::string bytes) {
  v1::Artifact artifact;
  artifact.set_kind(kind);
  artifact.set_digest(Sha256(bytes));
  artifact.set_size_bytes(static_cast<int64_t>(bytes.size()));
  by_digest_.emplace(artifact.digest(), std::move(bytes));
  return artifact;
}

v1::ArtifactChunk ArtifactStore::Chunk(const std::string& digest, int64_t offset) const {
  v1::ArtifactChunk chunk;
  chunk.set_digest(digest);
  chunk.set_offset(offset);
  const auto it = by_digest_.find(digest);
  if (it == by_digest_.end() || offset < 0 || offset > static_cast<int64_t>(it->second.size())) {
    chunk.set_unknown(true);
    return chunk;
  }
  chunk.set_data(it->second.substr(static_cast<size_t>(offset), kArtifactChunkBytes));
  return chunk;
}

}  // namespace baton::worker
