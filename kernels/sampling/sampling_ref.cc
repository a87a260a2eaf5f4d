// The definition in sampling.h, word for word: everything is sorted and nothing is skipped.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace baton::kernels {
namespace {

uint64_t Weight(float z) {
  return static_cast<uint64_t>(static_cast<double>(ExpF32(z)) * 4294967296.0);
}

// Tokens that the filters leave, of `order` (likeliest first).
std::vector<int32_t> Filter(const SampleParams& p, const std::vector<float>& z,
                            std::vector<int32_t> order) {
  const auto at = [&](int32_t token) { return z[static_cast<size_t>(token)]; };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) {
    order.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0f) {
    uint64_t total = 0;
    for (const int32_t token : order) total += Weight(at(token));
    uint64_t reached = 0;
    size_t kept = 0;
    do {
      reached += Weight(at(order[kept++]));
    } while (kept < order.size() && static_cast<double>(reached) <
                                        static_cast<double>(p.top_p) * static_cast<double>(total));
    order.resize(kept);
  }
  std::erase_if(order, [&](int32_t token) { return ExpF32(at(token)) < p.min_p; });
  return order;
}

}  // namespace

void SampleRowRef(const float* logits, int32_t vocab, const SampleParams& p, SampleResult* result) {
  *result = SampleResult();
  result->finite = std::all_of(logits, logits + vocab, [](float v) { return std::isfinite(v); });
  if (!result->finite) return;
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  // Likeliest first, the lower id of a tie first.
  const auto sort_by = [&](const float* values) {
    std::sort(order.begin(), order.end(), [values](int32_t a, int32_t b) {
      return values[a] != values[b] ? values[a] > values[b] : a < b;
    });
  };
  sort_by(logits);
  const float maximum = logits[order[0]];
  result->token = order[0];
  if (p.temperature >= kGreedyTemperature && p.top_k != 1) {
    std::vector<float> z(static_cast<size_t>(vocab));
    for (int32_t i = 0; i < vocab; ++i) {
      z[static_cast<size_t>(i)] = (logits[i] - maximum) * (1.0f / p.temperature);
    }
    // Equal z of different logits (underflow, rounding) are ordered by id as well.
    sort_by(z.data());
    std::vector<int32_t> kept = Filter(p, z, order);
    std::sort(kept.begin(), kept.end());
    float best = -INFINITY;
    for (const int32_t token : kept) {
      const float score =
          z[static_cast<size_t>(token)] + GumbelNoise(p.noise, static_cast<uint32_t>(token));
      if (score > best) {
        best = score;
        result->token = token;
      }
    }
  }
  if (!p.logprobs && p.num_top_logprobs <= 0) return;
  sort_by(logits);
  double sum = 0;
  for (int32_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]) - maximum);
  const auto logprob = [&](int32_t token) {
    const double value = static_cast<double>(logits[token]) - maximum - std::log(sum);
    return static_cast<float>(std::max(value, -static_cast<double>(FLT_MAX)));
  };
  result->logprob = logprob(result->token);
  result->num_top_logprobs = std::min(p.num_top_logprobs, vocab);
  for (int32_t i = 0; i < result->num_top_logprobs; ++i) {
    result->top_ids[i] = order[static_cast<size_t>(i)];
    result->top_logprobs[i] = logprob(result->top_ids[i]);
  }
}

}  // namespace baton::kernels
