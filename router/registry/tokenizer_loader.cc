#include "router/registry/tokenizer_loader.h"

#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace baton::router {
namespace {

constexpr size_t kChunkBytesMax = 256 << 10;
// A source that sends nothing for so long is left for another.
constexpr Duration kChunkTimeout = std::chrono::seconds(5);

std::string Sha256(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) return {};
  return std::string(reinterpret_cast<const char*>(digest), size);
}

}  // namespace

TokenizerLoader::TokenizerLoader(TextPool* pool, TextCodecFactory factory,
                                 std::function<void(std::string, CodecOr)> built)
    : pool_(pool), factory_(std::move(factory)), built_(std::move(built)) {}

std::shared_ptr<const TextCodec> TokenizerLoader::codec(const std::string& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : it->second.codec;
}

std::string TokenizerLoader::Reason(const std::string& key) const {
  const auto it = entries_.find(key);
  if (it != entries_.end() && it->second.state == State::kFailed) {
    return "its tokenizer could not be loaded";
  }
  return "its tokenizer is being loaded";
}

void TokenizerLoader::Pump(WorkerRegistry* registry, TimePoint now) {
  ForgetUnused(*registry);
  if (fetch_ != nullptr) {
    if (fetch_->source != SessionId() && now < fetch_->deadline) return;
    if (fetch_->source != SessionId()) {
      LogWarning("worker sends no tokenizer files", {{"session", fetch_->source.value}});
      fetch_->avoid = fetch_->source;
    }
    PickSource(registry, now);
    if (fetch_->source != SessionId()) return;
    // Nobody has the files any more. What has arrived would only take room.
    fetch_ = nullptr;
  }
  for (const auto& [name, model] : registry->models()) {
    if (model.workers.empty() || entries_.contains(model.tokenizer_key)) continue;
    fetch_ = std::make_unique<Fetch>();
    fetch_->key = model.tokenizer_key;
    fetch_->artifacts = model.definition.artifacts;
    PickSource(registry, now);
    if (fetch_->source != SessionId()) return;
    fetch_ = nullptr;
  }
}

void TokenizerLoader::ForgetUnused(WorkerRegistry& registry) {
  absl::flat_hash_set<absl::string_view> used;
  for (const auto& [name, model] : registry.models()) used.insert(model.tokenizer_key);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const bool keep = it->second.state == State::kBuilding || used.contains(it->first);
    it = keep ? std::next(it) : entries_.erase(it);
  }
}

void TokenizerLoader::PickSource(WorkerRegistry* registry, TimePoint now) {
  Worker* chosen = nullptr;
  for (const auto& [name, model] : registry->models()) {
    if (model.tokenizer_key != fetch_->key) continue;
    for (const SessionId id : model.workers) {
      Worker* worker = registry->Find(id);
      if (worker->broken) continue;
      if (chosen == nullptr || chosen->session_id == fetch_->avoid) chosen = worker;
    }
  }
  fetch_->source = SessionId();
  if (chosen == nullptr) return;
  fetch_->source = chosen->session_id;
  RequestChunk(chosen, now);
}

void TokenizerLoader::RequestChunk(Worker* worker, TimePoint now) {
  worker::v1::SessionRequest request;
  request.mutable_fetch_artifact()->set_digest(fetch_->artifacts[fetch_->index].digest);
  request.mutable_fetch_artifact()->set_offset(static_cast<int64_t>(fetch_->data.size()));
  if (!worker->session->Send(std::move(request))) worker->broken = true;
  fetch_->deadline = SaturatingAdd(now, kChunkTimeout);
}

absl::Status TokenizerLoader::OnChunk(Worker* worker, const worker::v1::ArtifactChunk& chunk,
                                      WorkerRegistry* registry, TimePoint now) {
  // A late answer of a source that was given up.
  if (fetch_ == nullptr || fetch_->source != worker->session_id) return absl::OkStatus();
  const ArtifactRef& artifact = fetch_->artifacts[fetch_->index];
  if (chunk.digest() != artifact.digest ||
      chunk.offset() != static_cast<int64_t>(fetch_->data.size())) {
    return absl::OkStatus();
  }
  if (chunk.unknown()) {
    return absl::FailedPreconditionError("the worker does not have a file that it listed");
  }
  const size_t missing = static_cast<size_t>(artifact.size_bytes) - fetch_->data.size();
  if (chunk.data().empty() || chunk.data().size() > std::min(missing, kChunkBytesMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece of ", chunk.data().size(), " bytes of a file that lacks ", missing));
  }
  fetch_->data += chunk.data();
  if (chunk.data().size() == missing) {
    if (Sha256(fetch_->data) != artifact.digest) {
      fetch_->data.clear();
      fetch_->avoid = worker->session_id;
      return absl::DataLossError(absl::StrCat("file ", absl::BytesToHexString(artifact.digest),
                                              " does not have that SHA-256"));
    }
    FinishFile();
    if (fetch_ == nullptr) {
      Pump(registry, now);
      return absl::OkStatus();
    }
  }
  RequestChunk(worker, now);
  return absl::OkStatus();
}

void TokenizerLoader::FinishFile() {
  fetch_->files.push_back(std::move(fetch_->data));
  fetch_->data.clear();
  if (++fetch_->index == fetch_->artifacts.size()) Build();
}

void TokenizerLoader::Build() {
  auto artifacts = std::make_shared<TokenizerArtifacts>();
  for (size_t i = 0; i < fetch_->files.size(); ++i) {
    switch (fetch_->artifacts[i].kind) {
      case worker::v1::ARTIFACT_KIND_TOKENIZER_JSON:
        artifacts->tokenizer_json = std::move(fetch_->files[i]);
        break;
      case worker::v1::ARTIFACT_KIND_TOKENIZER_MODEL:
        artifacts->tokenizer_model = std::move(fetch_->files[i]);
        break;
      default:
        artifacts->tokenizer_config = std::move(fetch_->files[i]);
    }
  }
  const std::string key = std::move(fetch_->key);
  fetch_ = nullptr;
  entries_[key] = Entry();
  pool_->SubmitAlways(
      [factory = factory_, built = built_, key, artifacts] { built(key, factory(*artifacts)); });
}

void TokenizerLoader::OnWorkerLost(SessionId id) {
  if (fetch_ != nullptr && fetch_->source == id) fetch_->source = SessionId();
}

void TokenizerLoader::OnBuilt(const std::string& key, CodecOr codec) {
  Entry& entry = entries_[key];
  if (codec.ok()) {
    entry = {.state = State::kReady, .codec = *std::move(codec)};
    LogInfo("tokenizer loaded");
  } else {
    entry = {.state = State::kFailed, .codec = nullptr};
    LogError("tokenizer could not be loaded", {{"status", codec.status().ToString()}});
  }
}

void TokenizerLoader::RetryFailed(const std::string& key) {
  const auto it = entries_.find(key);
  if (it != entries_.end() && it->second.state == State::kFailed) entries_.erase(it);
}

TimePoint TokenizerLoader::NextDeadline() const {
  return fetch_ == nullptr ? kNever : fetch_->deadline;
}

}  // namespace baton::router
