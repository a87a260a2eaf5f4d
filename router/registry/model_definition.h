// What a worker says about a model, checked: a worker is another process, perhaps of another
// version, so nothing it sends is trusted. Pure functions.
#ifndef BATON_ROUTER_REGISTRY_MODEL_DEFINITION_H_
#define BATON_ROUTER_REGISTRY_MODEL_DEFINITION_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/worker/v1/session.pb.h"
#include "router/registry/model_catalog.h"

namespace baton::router {

struct ArtifactRef {
  worker::v1::ArtifactKind kind = worker::v1::ARTIFACT_KIND_UNSPECIFIED;
  // SHA-256, 32 bytes.
  std::string digest;
  int64_t size_bytes = 0;
  friend auto operator<=>(const ArtifactRef&, const ArtifactRef&) = default;
};

struct ModelDefinition {
  std::string name;
  std::string revision;
  // Sorted; one of a kind.
  std::vector<ArtifactRef> artifacts;
  int64_t context_tokens_max = 0;
  int64_t vocabulary_size = 0;
  int64_t sampled_vocabulary_size = 0;
  // Sorted.
  std::vector<int32_t> eos_token_ids;
  ModelSamplingDefaults defaults;
  std::string kv_layout;
};

// ERRORS: InvalidArgument naming the field; a tokenizer larger than `artifact_bytes_max` in all is
// one. Sampling defaults out of range are dropped with a warning: they are a convenience.
absl::StatusOr<ModelDefinition> ParseModelDefinition(const worker::v1::ModelDescription& in,
                                                     size_t artifact_bytes_max);

// Whether both may serve under one name: revision, tokenizer, context, vocabulary, end tokens and
// KV layout. ERRORS: FailedPrecondition naming the field, with both values.
absl::Status CheckAgreement(const ModelDefinition& known, const ModelDefinition& offered);

// Names a set of artifacts: equal keys give equal tokenizers.
std::string TokenizerKey(const std::vector<ArtifactRef>& artifacts);

}  // namespace baton::router

#endif  // BATON_ROUTER_REGISTRY_MODEL_DEFINITION_H_
