// The rope settings of a config.json. Internal to engine/weights; included by .cc files only.
#ifndef BATON_ENGINE_WEIGHTS_ROPE_CONFIG_H_
#define BATON_ENGINE_WEIGHTS_ROPE_CONFIG_H_

#include "absl/status/status.h"
#include "engine/weights/json_fields.h"
#include "engine/weights/model_config.h"

namespace baton {

// Fills config->rope_theta and config->rope. Precedence as in transformers 5.17
// (RotaryEmbeddingConfigMixin): rope_scaling before rope_parameters; rope_theta inside before
// outside; a top-level original_max_position_embeddings before the one inside.
// REQUIRES: config->max_position_embeddings is set.
// ERRORS: as ReadModelConfig.
absl::Status ParseRope(const JsonFields& fields, ModelConfig* config);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_ROPE_CONFIG_H_
