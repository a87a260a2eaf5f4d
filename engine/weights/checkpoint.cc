#include "engine/weights/checkpoint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/strict_json.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kIndexBytesMax = size_t{64} << 20;
constexpr size_t kConfigBytesMax = size_t{1} << 20;
constexpr size_t kSampleBytes = 1024;

// File -> names of the tensors it must hold.
using ShardMap = std::map<std::string, std::vector<std::string>>;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::vector<std::string> SafetensorsFilesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) names.push_back(std::move(name));
    if (names.size() >= kCheckpointFilesMax) break;
  }
  return names;
}

bool IsPlainSafetensorsName(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\\') && !absl::StrContains(name, absl::string_view("\0", 1));
}

absl::StatusOr<ShardMap> ParseIndex(const std::string& text, const std::string& path) {
  ASSIGN_OR_RETURN(
      const nlohmann::json index,
      ParseJsonObject(text, path, {.depth_max = 4, .values_max = 2 * kCheckpointTensorsMax}));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is no filled object"));
  }
  ShardMap shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map: tensor ", QuoteForError(tensor), " maps to no string"));
    }
    const std::string& name = file.get_ref<const std::string&>();
    if (!IsPlainSafetensorsName(name)) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, ": weight_map: tensor ", QuoteForError(tensor), " maps to ", QuoteForError(name),
          ", which is not the name of a .safetensors file in the model's directory"));
    }
    shards[name].push_back(tensor);
    if (shards.size() > kCheckpointFilesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": more than ", kCheckpointFilesMax, " files"));
    }
  }
  return shards;
}

// The shard must hold exactly the tensors that the index maps to it.
absl::Status CheckShard(const SafetensorsFile& file, absl::Span<const std::string> expected) {
  for (const std::string& tensor : expected) {
    if (file.Find(tensor) == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(file.name(), ": tensor ", QuoteForError(tensor),
                       " is not in this file, although ", kIndexFile, " says so"));
    }
  }
  if (file.tensors().size() == expected.size()) return absl::OkStatus();
  const absl::flat_hash_set<absl::string_view> known(expected.begin(), expected.end());
  for (const TensorInfo& tensor : file.tensors()) {
    if (!known.contains(tensor.name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(file.name(), ": tensor ", QuoteForError(tensor.name),
                       " is in this file, but ", kIndexFile, " does not say so"));
    }
  }
  return absl::OkStatus();
}

// SHA-256 over length-prefixed fields, so that no two sequences of fields give the same bytes.
class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    ok_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }

  void Add(const void* data, uint64_t size) {
    uint8_t prefix[8];
    for (int i = 0; i < 8; ++i) prefix[i] = static_cast<uint8_t>(size >> (8 * i));
    ok_ = ok_ && EVP_DigestUpdate(context_.get(), prefix, sizeof(prefix)) == 1 &&
          EVP_DigestUpdate(context_.get(), data, size) == 1;
  }
  void Add(absl::string_view text) { Add(text.data(), text.size()); }
  void AddNumber(uint64_t number) { Add(absl::StrCat(number)); }

  absl::StatusOr<std::string> Hex() {
    std::string raw(32, '\0');
    ok_ = ok_ &&
          EVP_DigestFinal_ex(context_.get(), reinterpret_cast<uint8_t*>(raw.data()), nullptr) == 1;
    if (!ok_) return absl::InternalError("SHA-256 is not available");
    return absl::BytesToHexString(raw);
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  bool ok_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  auto checkpoint = std::make_unique<Checkpoint>(Private());
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    RETURN_IF_ERROR(checkpoint->OpenSingle(path));
    RETURN_IF_ERROR(checkpoint->ComputeRevision(""));
    return checkpoint;
  }
  const std::string single = absl::StrCat(path, "/", kSingleFile);
  const std::string index = absl::StrCat(path, "/", kIndexFile);
  if (Exists(single)) {
    RETURN_IF_ERROR(checkpoint->OpenSingle(single));
  } else if (Exists(index)) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index, kIndexBytesMax));
    RETURN_IF_ERROR(checkpoint->OpenSharded(path, text));
  } else if (!SafetensorsFilesIn(path).empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(index, ": no such file, although there are .safetensors files beside it"));
  } else {
    return absl::FailedPreconditionError(absl::StrCat(single, ": no such file"));
  }
  RETURN_IF_ERROR(checkpoint->ComputeRevision(path));
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  files_.push_back(std::move(file));
  return AddTensors(*files_.back());
}

absl::Status Checkpoint::OpenSharded(const std::string& directory, const std::string& index_text) {
  const std::string index = absl::StrCat(directory, "/", kIndexFile);
  ASSIGN_OR_RETURN(const ShardMap shards, ParseIndex(index_text, index));
  for (const auto& [name, expected] : shards) {
    ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                     SafetensorsFile::Open(absl::StrCat(directory, "/", name)));
    RETURN_IF_ERROR(CheckShard(*file, expected));
    files_.push_back(std::move(file));
    RETURN_IF_ERROR(AddTensors(*files_.back()));
  }
  for (const std::string& name : SafetensorsFilesIn(directory)) {
    if (shards.find(name) == shards.end()) {
      LogWarning("file is not in the checkpoint's index and is not read",
                 {{"directory", directory}, {"file", name}});
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddTensors(const SafetensorsFile& file) {
  if (tensors_.size() + file.tensors().size() > kCheckpointTensorsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": more than ", kCheckpointTensorsMax, " tensors in all"));
  }
  for (const TensorInfo& tensor : file.tensors()) {
    tensors_.push_back(&tensor);
    index_.emplace(tensor.name, &tensor);
    total_bytes_ += tensor.data.size();
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ComputeRevision(const std::string& directory) {
  Digest digest;
  digest.Add("baton checkpoint 1");
  for (const char* name : {"config.json", "generation_config.json"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (directory.empty() || !Exists(path)) {
      digest.Add("absent");
      continue;
    }
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kConfigBytesMax));
    digest.Add("present");
    digest.Add(text);
  }
  for (const std::unique_ptr<SafetensorsFile>& file : files_) {
    digest.Add(std::filesystem::path(file->name()).filename().string());
    digest.AddNumber(file->file_bytes());
    digest.Add(file->header());
    for (const TensorInfo& tensor : file->tensors()) {
      const size_t size = std::min(tensor.data.size(), kSampleBytes);
      digest.Add(tensor.data.data() + (tensor.data.size() - size) / 2, size);
    }
  }
  ASSIGN_OR_RETURN(revision_, digest.Hex());
  return absl::OkStatus();
}

const TensorInfo* Checkpoint::Find(absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : it->second;
}

}  // namespace baton
