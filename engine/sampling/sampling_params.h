// How the next token of a sequence is drawn. Plain data; already validated at the edge (router).
#ifndef BATON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
#define BATON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_

#include <cstdint>

namespace baton {

inline constexpr int kTopLogprobsMax = 20;

// Filters apply in this order, each on what the one before has left: temperature, top_k, top_p
// (smallest set of the likeliest tokens whose probabilities reach top_p), min_p. Then the token is
// argmax(logit / temperature + Gumbel noise), with noise keyed by (seed, sample_index, position of
// the token, token id): the same request gives the same tokens whatever else is in the batch.
struct SamplingParams {
  // 0: greedy (lowest id wins a tie).
  float temperature = 0;
  // 0: off.
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  bool logprobs = false;
  int32_t num_top_logprobs = 0;  // [0, kTopLogprobsMax]; > 0 implies logprobs.
};

}  // namespace baton

#endif  // BATON_ENGINE_SAMPLING_SAMPLING_PARAMS_H_
