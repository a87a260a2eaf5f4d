// Inverse frequencies of the rotary position embedding, for each scaling that is supported.
//
// Source: Hugging Face transformers 5.17, modeling_rope_utils.py (_compute_linear_scaling_rope_
// parameters, _compute_llama3_parameters, _compute_yarn_parameters) and modeling_llama.py; yarn is
// arXiv:2309.00071. transformers computes in float32, this in float64 (they agree to 1e-6).
//
// Thread-safe: pure function.
#ifndef BATON_ENGINE_WEIGHTS_ROPE_FREQUENCIES_H_
#define BATON_ENGINE_WEIGHTS_ROPE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "engine/weights/model_config.h"

namespace baton {

struct RopeFrequencies {
  // [head_dim / 2]: pair i of a head at position p is turned by p * inverse[i] radians.
  std::vector<double> inverse;
  // Factor on both cosine and sine (1 except for yarn).
  double attention_scaling = 1.0;
};

// REQUIRES: head_dim is even and positive, theta > 1, `scaling` as ReadModelConfig returns it.
RopeFrequencies ComputeRopeFrequencies(int32_t head_dim, double theta, const RopeScaling& scaling);

}  // namespace baton

#endif  // BATON_ENGINE_WEIGHTS_ROPE_FREQUENCIES_H_
