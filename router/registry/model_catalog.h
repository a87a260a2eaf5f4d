// The models that clients can name, as an immutable description each. Published by the core's loop,
// read by gRPC threads. ModelCatalog is thread-safe.
#ifndef BATON_ROUTER_REGISTRY_MODEL_CATALOG_H_
#define BATON_ROUTER_REGISTRY_MODEL_CATALOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "router/text/text_codec.h"

namespace baton::router {

// From generation_config.json; unset: the neutral value.
struct ModelSamplingDefaults {
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
};

// A model stays listed, not ready, when its last worker has gone: its name is not unknown.
struct ServedModel {
  std::string name;
  std::string revision;
  int64_t context_tokens_max = 0;
  int64_t vocabulary_size = 0;
  std::vector<int32_t> eos_token_ids;
  ModelSamplingDefaults defaults;
  // Tokens that the largest KV pool can hold; 0: not known.
  int64_t kv_tokens_max = 0;
  // Null until the tokenizer is loaded.
  std::shared_ptr<const TextCodec> codec;
  // A worker set that can serve it is connected and the tokenizer is loaded.
  bool ready = false;
  // Why not, for the client.
  std::string unready_reason;
};

class ModelCatalog {
 public:
  // Replaces the description of that name.
  void Publish(ServedModel model) EXCLUDES(mutex_);

  // The model called `name`, ready or not. The empty name means the only model there is.
  // ERRORS: NotFound listing what is served; InvalidArgument: empty name with several models;
  // Unavailable: empty name and no model yet.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(absl::string_view name) const
      EXCLUDES(mutex_);

  // Sorted by name.
  std::vector<std::shared_ptr<const ServedModel>> List() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<const ServedModel>> models_ GUARDED_BY(mutex_);
};

// OK when a request for the model can be accepted now. ERRORS: Unavailable saying why not.
absl::Status CheckReady(const ServedModel& model);

}  // namespace baton::router

#endif  // BATON_ROUTER_REGISTRY_MODEL_CATALOG_H_
