// The policy of SampleRowCpu: which tokens stay. Whole-row passes are in sampling_rows_cpu.cc.
#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/sampling/sampling_rows.h"
#include "kernels/vector_math/vector_math_cpu.h"

namespace baton::kernels {
namespace {

struct Candidate {
  float z;
  int32_t token;
};

bool Likelier(const Candidate& a, const Candidate& b) {
  return a.z != b.z ? a.z > b.z : a.token < b.token;
}

uint64_t Weight(float exponential) {
  return static_cast<uint64_t>(static_cast<double>(exponential) * 4294967296.0);
}

struct Scratch {
  float* z;            // [padded]
  float* exponential;  // [padded]
  Candidate* candidates;
  int32_t padded;
};

// Keeps the likeliest candidates whose weights reach top_p of the sum. Returns how many; they are
// then at the end of [0, n), which is what popping a heap leaves.
int32_t CutTopP(float top_p, Candidate* candidates, int32_t n, float* exponential) {
  // exponential[i] belongs to candidate i here; popping reorders candidates, so weights are
  // recomputed from z below by the scalar form, which has the same bits.
  uint64_t total = 0;
  for (int32_t i = 0; i < n; ++i) total += Weight(exponential[i]);
  const double enough = static_cast<double>(top_p) * static_cast<double>(total);
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return Likelier(b, a); };
  std::make_heap(candidates, candidates + n, less_likely);
  uint64_t reached = 0;
  int32_t kept = 0;
  while (kept < n) {
    std::pop_heap(candidates, candidates + (n - kept), less_likely);
    reached += Weight(ExpF32(candidates[n - kept - 1].z));
    ++kept;
    if (static_cast<double>(reached) >= enough) break;
  }
  return kept;
}

// Sets z of every token that a filter removes to -infinity. z[maximum] = 0 always stays.
void ApplyFilters(const SampleParams& p, int32_t vocab, const Scratch& s) {
  constexpr float kRemoved = -std::numeric_limits<float>::infinity();
  const bool top_k = p.top_k > 0 && p.top_k < vocab;
  const bool top_p = p.top_p < 1.0f;
  const bool min_p = p.min_p > 0.0f;
  if (top_k || top_p) {
    int32_t n = 0;
    // A token without weight can matter to top_k only.
    const float floor = top_k ? kRemoved : -22.5f;
    for (int32_t i = 0; i < vocab; ++i) {
      if (s.z[i] >= floor) s.candidates[n++] = {s.z[i], i};
    }
    if (top_k && p.top_k < n) {
      std::nth_element(s.candidates, s.candidates + p.top_k, s.candidates + n, Likelier);
      n = p.top_k;
    }
    const Candidate* kept = s.candidates;
    if (top_p) {
      for (int32_t i = 0; i < n; ++i) s.exponential[i] = s.candidates[i].z;
      ExpArray(s.exponential, static_cast<size_t>(n), s.exponential);
      const int32_t cut = CutTopP(p.top_p, s.candidates, n, s.exponential);
      kept = s.candidates + (n - cut);
      n = cut;
    }
    std::fill(s.z, s.z + s.padded, kRemoved);
    for (int32_t i = 0; i < n; ++i) s.z[kept[i].token] = kept[i].z;
  }
  if (min_p) {
    const auto padded = static_cast<size_t>(s.padded);
    ExpArray(s.z, padded, s.exponential);
    for (size_t i = 0; i < padded; ++i) {
      if (!(s.exponential[i] >= p.min_p)) s.z[i] = kRemoved;
    }
    // min_p > 1 would remove the likeliest too; the caller is expected to have refused it.
  }
}

float Logprob(float logit, float maximum, double log_sum) {
  const double value = static_cast<double>(logit) - static_cast<double>(maximum) - log_sum;
  return value < -static_cast<double>(FLT_MAX) ? -FLT_MAX : static_cast<float>(value);
}

void FillLogprobs(const float* logits, int32_t vocab, const SampleParams& p, float maximum,
                  SampleResult* result) {
  const double log_sum = std::log(SumOfExponentials(logits, vocab, maximum));
  result->logprob = Logprob(logits[result->token], maximum, log_sum);
  const int32_t wanted =
      std::min({p.num_top_logprobs, vocab, static_cast<int32_t>(kSampleTopLogprobsMax)});
  // Insertion into a short sorted list; later ids do not displace equal earlier ones.
  Candidate top[kSampleTopLogprobsMax];
  int32_t n = 0;
  for (int32_t i = 0; i < vocab && wanted > 0; ++i) {
    if (n == wanted && !(logits[i] > top[n - 1].z)) continue;
    int32_t at = n < wanted ? n++ : n - 1;
    for (; at > 0 && logits[i] > top[at - 1].z; --at) top[at] = top[at - 1];
    top[at] = {logits[i], i};
  }
  result->num_top_logprobs = n;
  for (int32_t i = 0; i < n; ++i) {
    result->top_ids[i] = top[i].token;
    result->top_logprobs[i] = Logprob(top[i].z, maximum, log_sum);
  }
}

}  // namespace

void SampleRowCpu(const float* logits, int32_t vocab, const SampleParams& p, void* scratch,
                  SampleResult* result) {
  *result = SampleResult();
  const RowMaximum maximum = FindRowMaximum(logits, vocab);
  result->finite = maximum.finite;
  if (!maximum.finite) return;
  result->token = maximum.token;
  if (p.temperature >= kGreedyTemperature && p.top_k != 1) {
    Scratch s;
    s.padded = (vocab + 31) / 32 * 32;
    s.z = static_cast<float*>(scratch);
    s.exponential = s.z + s.padded;
    s.candidates = reinterpret_cast<Candidate*>(s.exponential + s.padded);
    ScaleRow(logits, vocab, maximum.value, 1.0f / p.temperature, s.padded, s.z);
    ApplyFilters(p, vocab, s);
    result->token = GumbelArgmax(s.z, s.padded, p.noise);
  }
  if (p.logprobs || p.num_top_logprobs > 0) {
    FillLogprobs(logits, vocab, p, maximum.value, result);
  }
}

}  // namespace baton::kernels
