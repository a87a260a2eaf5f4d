// For each row: the token of sampling.h, and log-probabilities if asked for.
//   logits float32 [rows, stride], params [rows] -> results [rows], last_samples int32 [rows]
//
// Mapping: a cluster of 8 blocks, of 16 when there are few rows, takes a row. Each block loads one
// contiguous slice, all of it in flight at once, finds its largest logit on the way, and, if the
// row needs more than that, keeps the slice in shared memory, where every further pass runs:
// selection for top_k and top_p (sampling_row.cuh), the noisy maximum, log-probabilities. Blocks
// meet in distributed shared memory: one cluster barrier for the maximum, one a selection pass, one
// at the end. Parameters are read on the device, rows branch on them alike in all blocks of a
// cluster, so a captured launch serves any mix; nothing needs a workspace.
//
// Noise is drawn only where it could matter: a token can beat the best score s so far only if
// -log(-log(u)) >= s - z, hence 1 - u <= exp(z - s), which is tested (with a margin) on the raw
// bits.
//
// Bytes: 4 * rows * vocab, read once: bound by memory. Ideal at 4.26 TB/s for 64 rows of
// 128,256: 7.7 us; one row: bound by latency. What goes beyond the maximum is bound by work in
// shared memory. Measured on an H200, vocabulary 128,256, normal logits of deviation 2.5 (flatter
// than a language model's, so top_p keeps thousands of tokens), in a graph, 1 / 8 / 64 rows, us:
//   greedy                         3.5 / 5.5 / 15.9    5 log-probabilities too   13.4 / 18.4 / 62
//   temperature 0.8                7.8 / 11.8 / 36.8   and top_k 40              16.9 / 22.6 / 66.9
//   temperature 0.8 and top_p 0.95 31 / 43 / 147       and top_k 40              20 / 26 / 78
//   all of it, min_p and 20 log-probabilities          31 / 40 / 129
// Limits: 64 rows take two waves (registers and shared memory allow two blocks an SM). Filters take
// longer than a count of their instructions explains: where the rest goes is not measured.
#include <cfloat>

#include "kernels/launch/launch.cuh"
#include "kernels/launch/vectors8.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/grid_dependency.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_row.cuh"

namespace baton::kernels {
namespace {

constexpr uint64_t kNotFinite = ~uint64_t{0};
constexpr float kLowest = -__builtin_inff();

// Rows up to which a cluster has 16 blocks; more rows fill the chip with 8 each.
constexpr int64_t kFewRows = 8;
constexpr int kFewRowsBlocks = 16;
constexpr int kManyRowsBlocks = 8;

// Tokens of a block: whole vectors, so that no Philox block of four is cut.
__host__ __device__ constexpr int SliceTokens(int vocab, int num_blocks) {
  return (vocab + 4 * num_blocks - 1) / (4 * num_blocks) * 4;
}

// Larger is likelier, the lower token of a tie is larger; 0 is no token.
__device__ __forceinline__ uint64_t PackScore(float score, int token) {
  return (static_cast<uint64_t>(OrderedBits(score)) << 32) | ~static_cast<uint32_t>(token);
}
__device__ __forceinline__ int TokenOfScore(uint64_t packed) {
  return static_cast<int>(~static_cast<uint32_t>(packed));
}
__device__ __forceinline__ float ScoreOf(uint64_t packed) {
  return FloatOfOrderedBits(static_cast<uint32_t>(packed >> 32));
}

__device__ __forceinline__ uint64_t BlockMax(uint64_t x, RowShared* shared) {
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, step));
  if (threadIdx.x % 32 == 0) shared->warp_totals[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll 4
  for (int w = 0; w < kRowWarps; ++w) x = max(x, shared->warp_totals[w]);
  return x;
}

__device__ __forceinline__ uint64_t BlockSum(uint64_t x, RowShared* shared) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  if (threadIdx.x % 32 == 0) shared->warp_totals[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll 4
  for (int w = 0; w < kRowWarps; ++w) x += shared->warp_totals[w];
  return x;
}

struct SliceMaximum {
  float best = kLowest;
  int token = 0;
  float zeros = 0;  // Sum of 0 * logit: NaN once a logit is not finite.

  __device__ __forceinline__ void Take(float logit, int t) {
    zeros = __fmaf_rn(logit, 0.0f, zeros);
    if (logit > best) {
      best = logit;
      token = t;
    }
  }
  __device__ __forceinline__ uint64_t Packed() const {
    if (zeros != 0.0f) return kNotFinite;  // NaN too.
    return best == kLowest ? 0 : PackScore(best, token);
  }
};

// Vector i of the slice; elements past its end are -infinity.
template <bool kVector>
__device__ __forceinline__ float4 LoadLogits(const float* logits, const Row& row, int i) {
  const int token = row.first + 4 * i;
  float4 v = make_float4(kLowest, kLowest, kLowest, kLowest);
  if (token >= row.end) return v;
  if constexpr (kVector) {
    v = *reinterpret_cast<const float4*>(logits + token);
  } else {
    v.x = logits[token];
    if (token + 1 < row.end) v.y = logits[token + 1];
    if (token + 2 < row.end) v.z = logits[token + 2];
    if (token + 3 < row.end) v.w = logits[token + 3];
  }
  if (token + 1 >= row.end) v.y = kLowest;
  if (token + 2 >= row.end) v.z = kLowest;
  if (token + 3 >= row.end) v.w = kLowest;
  return v;
}

// Loads the slice, into shared memory too when `keep` is set, and returns its packed maximum.
template <bool kVector>
__device__ __forceinline__ uint64_t LoadSlice(const float* logits, const Row& row, bool keep) {
  constexpr int kLoadsInFlight = kVector ? 8 : 2;
  SliceMaximum maximum;
  for (int base = static_cast<int>(threadIdx.x); base < row.num_vectors();
       base += kLoadsInFlight * kRowThreads) {
    float4 v[kLoadsInFlight];
#pragma unroll
    for (int u = 0; u < kLoadsInFlight; ++u) {
      v[u] = LoadLogits<kVector>(logits, row, base + u * kRowThreads);
    }
#pragma unroll
    for (int u = 0; u < kLoadsInFlight; ++u) {
      const int i = base + u * kRowThreads;
      if (i >= row.num_vectors()) break;
      const int token = row.first + 4 * i;
      maximum.Take(v[u].x, token);
      if (token + 1 < row.end) maximum.Take(v[u].y, token + 1);
      if (token + 2 < row.end) maximum.Take(v[u].z, token + 2);
      if (token + 3 < row.end) maximum.Take(v[u].w, token + 3);
      if (keep) row.slice()[i] = v[u];
    }
  }
  return maximum.Packed();
}

// Which tokens the filters leave. The last that stays, in the order of ScaledKey, has that distance
// from the largest; without filters it is infinite.
struct Kept {
  float distance = -kLowest;
  int token = 1 << kTokenBits;
  float min_p = 0;

  __device__ __forceinline__ bool Has(float z, int t) const {
    return -z < distance || (-z == distance && t <= token);
  }
};

__device__ __forceinline__ Kept ApplyFilters(const SampleParams& params, int vocab,
                                             const ScaledKey& key, Row* row) {
  uint64_t limit = kLastOrdered;
  const int top_k = params.top_k > 0 && params.top_k < vocab ? params.top_k : 0;
  if (top_k > 0) limit = Select<false>(row, key, limit, static_cast<uint64_t>(top_k), 0.0f);
  if (params.top_p < 1.0f) {
    if (top_k > 0 && top_k <= kCandidatesMax) {
      const int num_candidates = GatherCandidates(row, key, {kNumCuts, -1, {0, limit}});
      limit = SelectCandidate<true, true>(row->shared(), num_candidates, 0, params.top_p, limit);
    } else {
      limit = Select<true>(row, key, limit, 0, params.top_p);
    }
  }
  Kept kept;
  kept.min_p = params.min_p;
  const float distance = __uint_as_float(KeyOf(limit));
  if (distance < -kLowest) {  // Otherwise what is cut off could never be drawn.
    kept.distance = distance;
    kept.token = TokenOf(limit);
  }
  return kept;
}

// 2^x, roughly, and 0 for results that are not normal.
__device__ __forceinline__ float RoughExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ PhiloxBlock NoiseBits(const NoiseKey& noise, int token) {
  auto key0 = static_cast<uint32_t>(noise.seed);
  auto key1 = static_cast<uint32_t>(noise.seed >> 32);
  // Opaque, lest the keys of all rounds be kept in twenty registers over a loop.
  asm volatile("" : "+r"(key0), "+r"(key1));
  return Philox4x32({{static_cast<uint32_t>(token) / 4, noise.position, noise.sample_index, 0}},
                    key0, key1);
}
// GumbelNoise of philox.h without an index into registers.
__device__ __forceinline__ float NoiseOfToken(const NoiseKey& noise, int token) {
  const PhiloxBlock bits = NoiseBits(noise, token);
  const uint32_t even = token % 4 == 0 ? bits.word[0] : bits.word[2];
  const uint32_t odd = token % 4 == 1 ? bits.word[1] : bits.word[3];
  return GumbelFromBits(token % 2 == 0 ? even : odd);
}

// What (2^23 - 1) minus the 23 random bits must not exceed for the noise to lift z to `bound`; errs
// towards more.
__device__ __forceinline__ uint32_t ReachOf(float z, float bound) {
  return __float2uint_rz(RoughExp2((z - bound) * 1.442695f) * (8388608.0f * 1.001f));
}
__device__ __forceinline__ uint32_t DistanceOfBits(uint32_t bits) { return ~bits >> 9; }

// The best score of the four tokens of a vector, packed.
__device__ __forceinline__ uint64_t BestOfFour(const float (&z)[4], int token,
                                               const PhiloxBlock& random, float bound,
                                               float min_p) {
  uint64_t best = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (DistanceOfBits(random.word[j]) > ReachOf(z[j], bound)) continue;
    if (min_p > 0.0f && ExpF32(z[j]) < min_p) continue;
    const float score = __fadd_rn(z[j], GumbelFromBits(random.word[j]));
    if (score > kLowest) best = max(best, PackScore(score, token + j));
  }
  return best;
}

// The best score of the slice's kept tokens, packed; 0 if there is none.
__device__ __forceinline__ uint64_t DrawFromSlice(const Row& row, const ScaledKey& key,
                                                  const Kept& kept, const NoiseKey& noise,
                                                  int likeliest) {
  // A first bound: the score of the largest logit, if the filters leave it.
  float bound = kLowest;
  if (kept.Has(0.0f, likeliest) && !(1.0f < kept.min_p)) bound = NoiseOfToken(noise, likeliest);
  const bool filtered = kept.distance < -kLowest;
  uint64_t best = 0;
  for (int base = 0; base < row.num_vectors(); base += kRowThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    float4 v = make_float4(kLowest, kLowest, kLowest, kLowest);
    if (i < row.num_vectors()) v = row.slice()[i];
    float z[4] = {key.Z(v.x), key.Z(v.y), key.Z(v.z), key.Z(v.w)};
    const int token = row.first + 4 * i;
    if (filtered) {
#pragma unroll
      for (int j = 0; j < 4; ++j) z[j] = kept.Has(z[j], token + j) ? z[j] : kLowest;
    }
    const float largest = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    if (!__any_sync(kAllLanes, largest > kLowest && largest + kGumbelMax >= bound)) continue;
    const PhiloxBlock random = NoiseBits(noise, token);
    const uint32_t most =
        max(max(random.word[0], random.word[1]), max(random.word[2], random.word[3]));
    const bool reached = DistanceOfBits(most) <= ReachOf(largest, bound);
    if (!__any_sync(kAllLanes, reached)) continue;
    if (reached) best = max(best, BestOfFour(z, token, random, bound, kept.min_p));
    const uint32_t score = __reduce_max_sync(kAllLanes, static_cast<uint32_t>(best >> 32));
    if (score != 0) bound = fmaxf(bound, FloatOfOrderedBits(score));
  }
  return best;
}

// Sums of exponentials are integers of that unit: at most 2^62 for a row, exact in any order.
constexpr float kExpSumScale = 17592186044416.0f;  // 2^44

__device__ __forceinline__ uint64_t ScaledExponential(float logit, float maximum) {
  return __float2ull_rz(__fmul_rn(ExpF32(__fsub_rn(logit, maximum)), kExpSumScale));
}
__device__ __forceinline__ uint64_t SumOfExponentials(const Row& row, float maximum) {
  uint64_t sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < row.num_vectors(); i += kRowThreads) {
    const float4 v = row.slice()[i];  // Past the end: -infinity, of exponential 0.
    sum += ScaledExponential(v.x, maximum) + ScaledExponential(v.y, maximum);
    sum += ScaledExponential(v.z, maximum) + ScaledExponential(v.w, maximum);
  }
  return sum;
}

// Leaves the `wanted` largest logits of the row in rank 0's list.
__device__ __forceinline__ void CollectTop(const LogitKey& key, int wanted, int vocab, Row* row) {
  uint64_t limit = kLastOrdered;
  if (wanted < vocab) {
    limit = Select<false>(row, key, limit, static_cast<uint64_t>(wanted), 0.0f);
  }
  const uint32_t counter = ptx::AddressInBlock(&row->shared()->num_top, 0);
  for (int i = static_cast<int>(threadIdx.x); i < row->num_vectors(); i += kRowThreads) {
    const float4 v = row->slice()[i];
    const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = row->first + 4 * i + j;
      const uint64_t ordered = Ordered(key(logits[j]), token);
      if (token >= row->end || ordered > limit) continue;
      const uint32_t at = ptx::AddCluster32(counter, 1);
      if (at >= kSampleTopLogprobsMax) continue;
      ptx::StoreCluster64(ptx::AddressInBlock(&row->shared()->top[at], 0), ordered);
    }
  }
}

__device__ __forceinline__ float Logprob(float logit, float maximum, double log_sum) {
  const double value = static_cast<double>(logit) - static_cast<double>(maximum) - log_sum;
  return value < -static_cast<double>(FLT_MAX) ? -FLT_MAX : static_cast<float>(value);
}

// In rank 0, after the last cluster barrier.
__device__ __forceinline__ void FillLogprobs(const float* logits, const Row& row, int wanted,
                                             float maximum, int token, SampleResult* result) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < row.num_blocks(); ++r) sum += row.shared()->exp_sums[r];
  const double log_sum = log(static_cast<double>(sum) / static_cast<double>(kExpSumScale));
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) {
    result->logprob = Logprob(logits[token], maximum, log_sum);
    result->num_top_logprobs = wanted;
  }
  if (i >= wanted) return;
  const uint64_t own = row.shared()->top[i];
  int place = 0;
  for (int other = 0; other < wanted; ++other) place += row.shared()->top[other] < own ? 1 : 0;
  result->top_ids[place] = TokenOf(own);
  result->top_logprobs[place] =
      Logprob(FloatOfOrderedBits(OrderedBits(maximum) - KeyOf(own)), maximum, log_sum);
}

constexpr int kResultWords = static_cast<int>(sizeof(SampleResult) / 4);
static_assert(sizeof(SampleResult) % 4 == 0 && kResultWords <= kRowThreads);

__device__ __forceinline__ void ClearResult(RowShared* shared) {
  if (threadIdx.x < kResultWords) reinterpret_cast<uint32_t*>(&shared->result)[threadIdx.x] = 0;
  if (threadIdx.x == 0) shared->num_top = 0;
}

// In rank 0.
__device__ __forceinline__ void WriteResult(const SampleCudaParams& p, int64_t r, RowShared* shared,
                                            bool finite, int token) {
  if (threadIdx.x == 0) {
    shared->result.token = token;
    shared->result.finite = finite;
    if (p.last_samples != nullptr) p.last_samples[r] = token;
  }
  __syncthreads();
  if (threadIdx.x < kResultWords) {
    reinterpret_cast<uint32_t*>(p.results + r)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&shared->result)[threadIdx.x];
  }
}

// The largest of the blocks' values, which each of them stores into all.
__device__ __forceinline__ uint64_t MaxOverCluster(uint64_t block_value, const Row& row) {
  if (threadIdx.x < row.num_blocks()) {
    ptx::StoreCluster64(ptx::AddressInBlock(&row.shared()->row_best[row.rank()], threadIdx.x),
                        block_value);
  }
  ptx::ClusterSync();
  uint64_t largest = 0;
  for (uint32_t r = 0; r < row.num_blocks(); ++r) largest = max(largest, row.shared()->row_best[r]);
  return largest;
}

// What a row asks for beyond its largest logit.
struct Wanted {
  bool draw;
  bool logprobs;
  int num_top;

  __device__ __forceinline__ Wanted(const SampleParams& params, int vocab)
      : draw(params.temperature >= kGreedyTemperature && params.top_k != 1),
        logprobs(params.logprobs || params.num_top_logprobs > 0),
        num_top(max(0, min(params.num_top_logprobs, min(vocab, kSampleTopLogprobsMax)))) {}
  __device__ __forceinline__ bool OnlyMaximum() const { return !draw && !logprobs; }
};

// Everything after the maximum. Leaves the result's fields but `token` and `finite` in rank 0, and
// returns the token there.
__device__ __forceinline__ int FinishRow(const SampleParams& params, const Wanted& wanted,
                                         const float* logits, int vocab, uint64_t largest,
                                         Row* row) {
  RowShared* shared = row->shared();
  const float maximum = ScoreOf(largest);
  if (wanted.draw) {
    const ScaledKey key = {maximum, __fdiv_rn(1.0f, params.temperature)};
    const Kept kept = ApplyFilters(params, vocab, key, row);
    const uint64_t best =
        BlockMax(DrawFromSlice(*row, key, kept, params.noise, TokenOfScore(largest)), shared);
    if (threadIdx.x == 0) {
      ptx::StoreCluster64(ptx::AddressInBlock(&shared->draw_best[row->rank()], 0), best);
    }
    __syncthreads();
  }
  if (wanted.logprobs) {
    const uint64_t sum = BlockSum(SumOfExponentials(*row, maximum), shared);
    if (threadIdx.x == 0) {
      ptx::StoreCluster64(ptx::AddressInBlock(&shared->exp_sums[row->rank()], 0), sum);
    }
    __syncthreads();
    if (wanted.num_top > 0) CollectTop({maximum}, wanted.num_top, vocab, row);
  }
  ptx::ClusterSync();  // The last: nobody touches another block's memory after it.
  if (row->rank() != 0) return 0;
  int token = TokenOfScore(largest);
  if (wanted.draw) {
    uint64_t best = 0;
    for (uint32_t r = 0; r < row->num_blocks(); ++r) best = max(best, shared->draw_best[r]);
    if (best != 0) token = TokenOfScore(best);
  }
  if (wanted.logprobs) {
    FillLogprobs(logits, *row, wanted.num_top, maximum, token, &shared->result);
  }
  return token;
}

template <bool kVector>
__global__ void __launch_bounds__(kRowThreads, 2) SampleKernel(const SampleCudaParams p) {
  ptx::DependencyTrigger();
  Row row;
  RowShared* shared = row.shared();
  ClearResult(shared);
  ptx::ClusterArrive();  // This block has started; waited for before memory of others is touched.
  ptx::DependencyWait();

  const auto num_blocks = static_cast<int>(ptx::ClusterBlocks());
  const int64_t r = blockIdx.x / static_cast<unsigned>(num_blocks);
  const SampleParams& params = p.params[r];  // Read where needed: registers are short.
  const Wanted wanted(params, p.vocab);
  const float* logits = p.logits + r * p.stride;
  row.pass = 0;
  row.first = static_cast<int>(row.rank()) * SliceTokens(p.vocab, num_blocks);
  row.end = min(row.first + SliceTokens(p.vocab, num_blocks), p.vocab);
  const uint64_t block_largest =
      BlockMax(LoadSlice<kVector>(logits, row, !wanted.OnlyMaximum()), shared);
  ptx::ClusterWait();
  const uint64_t largest = MaxOverCluster(block_largest, row);

  const bool finite = largest != kNotFinite;
  int token = finite ? TokenOfScore(largest) : 0;
  if (finite && !wanted.OnlyMaximum()) {
    token = FinishRow(params, wanted, logits, p.vocab, largest, &row);
  }
  if (row.rank() == 0) WriteResult(p, r, shared, finite, token);
}

}  // namespace

KernelStatus SampleCuda(const SampleCudaParams& p, CudaStream stream, LaunchOrder order) {
  if (p.rows < 0 || p.vocab < 1 || p.stride < p.vocab) return KernelStatus::kInvalidArgument;
  if (p.vocab > kSampleCudaVocabMax || p.rows > INT32_MAX / kFewRowsBlocks) {
    return KernelStatus::kUnsupported;
  }
  if (p.rows == 0) return KernelStatus::kOk;
  if (p.logits == nullptr || p.params == nullptr || p.results == nullptr) {
    return KernelStatus::kInvalidArgument;
  }
  const int num_blocks = p.rows <= kFewRows ? kFewRowsBlocks : kManyRowsBlocks;
  const auto kernel =
      p.stride % 4 == 0 && IsAligned16(p.logits) ? SampleKernel<true> : SampleKernel<false>;
  return Launch(
      {.grid = dim3(static_cast<unsigned>(p.rows) * static_cast<unsigned>(num_blocks)),
       .block = dim3(kRowThreads),
       .shared_bytes =
           kRowSharedBytes + static_cast<size_t>(SliceTokens(p.vocab, num_blocks)) * sizeof(float),
       .stream = stream,
       .order = order,
       .cluster = num_blocks},
      kernel, p);
}

}  // namespace baton::kernels
