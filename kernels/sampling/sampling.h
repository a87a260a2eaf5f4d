// Draws a token from one row of logits. With z = (logit - largest logit) / temperature:
//  1. top_k keeps the k likeliest tokens (lower id wins a tie);
//  2. top_p keeps the smallest set of the likeliest tokens of what is left whose weights reach
//     top_p of their sum, at least one. Weights are floor(2^32 * exp(z)), so sums are integers and
//     exact in any order;
//  3. min_p keeps tokens with exp(z) >= min_p (the likeliest has exp(0) = 1);
//  4. the token is the one with the largest z + Gumbel noise (lower id wins a tie).
// Temperatures below kGreedyTemperature, and top_k = 1, take the largest logit (lower id wins a
// tie).
//
// A row depends on nothing but its logits and parameters. A row with a NaN or an infinity among its
// first `vocab` logits is reported as not finite, and nothing else of its result means anything.
// Bytes: the row, read two to four times. Thread rule: pure; rows may run at once.
#ifndef BATON_KERNELS_SAMPLING_SAMPLING_H_
#define BATON_KERNELS_SAMPLING_SAMPLING_H_

#include <cstddef>
#include <cstdint>

#include "kernels/sampling/philox.h"

namespace baton::kernels {

// A temperature that small makes any other token impossible unless logits differ by less than
// 0.017; and 1 / temperature stays far from overflow.
inline constexpr float kGreedyTemperature = 1e-3f;
inline constexpr int kSampleTopLogprobsMax = 20;

struct SampleParams {
  float temperature = 0;
  int32_t top_k = 0;    // <= 0 or >= vocab: off.
  float top_p = 1;      // >= 1: off.
  float min_p = 0;      // <= 0: off.
  NoiseKey noise = {};  // `position` is the one of the token drawn.
  bool logprobs = false;
  int32_t num_top_logprobs = 0;  // [0, kSampleTopLogprobsMax]
};

struct SampleResult {
  int32_t token = 0;
  bool finite = true;
  // Natural logarithms of the softmax of the raw logits over the first `vocab`; finite. Set with
  // `logprobs` or num_top_logprobs > 0.
  float logprob = 0;
  int32_t num_top_logprobs = 0;  // min(wanted, vocab)
  int32_t top_ids[kSampleTopLogprobsMax] = {};
  float top_logprobs[kSampleTopLogprobsMax] = {};
};

// logits: [vocab]; a head with more rows than the tokenizer has tokens passes only the latter.
// REQUIRES: vocab > 0.
void SampleRowRef(const float* logits, int32_t vocab, const SampleParams& p, SampleResult* result);

// Bytes of scratch of one thread, aligned to 64.
constexpr size_t SampleScratchBytes(int32_t vocab) {
  const size_t padded = (static_cast<size_t>(vocab) + 63) / 32 * 32;
  return padded * (sizeof(float) * 2 + sizeof(float) + sizeof(int32_t));
}
void SampleRowCpu(const float* logits, int32_t vocab, const SampleParams& p, void* scratch,
                  SampleResult* result);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_H_
