// One row of logits held by a cluster of blocks, and selection in it without sorting. Private to
// sampling_cuda.cu.
//
// The total order of tokens ("likelier first, lower id of a tie first") is one of 64-bit integers:
// a key that falls as the value rises, then the id. Selecting the tokens that a filter keeps is
// finding the last of these integers that stays:
//  1. counts and integer weights of the tokens nearer to the largest than 1, 2, 4, 8, 16 are added
//  up
//     in registers, which tells how far a filter reaches;
//  2. unless few tokens are that near, a histogram of them tells the bin (shared-memory atomics
//     queue, so tokens beyond are left out, which are most of a row);
//  3. at most kCandidatesMax tokens of the bin are gathered and compared with each other; of more,
//     another histogram narrows the bin down.
// Blocks read each other's sums and candidates from distributed shared memory: one cluster barrier
// a pass. Sums of integers do not depend on the order of atomics, so the result is exact and always
// the same.
#ifndef BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
#define BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_

#include <cstdint>

#include "kernels/ptx/cluster.cuh"
#include "kernels/sampling/sampling.h"

namespace baton::kernels {

inline constexpr int kRowBlocksMax = 16;  // Blocks of a cluster.
inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kBins = kRowThreads;  // A thread adds up one bin.
inline constexpr int kBinsLog2 = 9;
inline constexpr int kCandidatesMax = 256;
inline constexpr int kTokenBits = 18;
inline constexpr uint32_t kAllLanes = ~0u;

// Distances from the largest: cut c is 2^c; beyond the last there is "all".
inline constexpr int kNumCuts = 5;
struct CutSums {
  uint64_t weight[kNumCuts + 1];
  uint32_t count[kNumCuts + 1];
};

// What other blocks of the cluster read of one pass. Sums over at most 2^15 tokens of a block:
// neither half of the weights overflows.
struct PassBuffer {
  uint32_t low[kBins];   // Counts, or bits 0 to 15 of the weights.
  uint32_t high[kBins];  // Bits 16 to 32.
  uint64_t candidates[kCandidatesMax];
  uint32_t num_candidates;  // Found, even if more than fit.
  CutSums cuts;
};

// Where the running sum over the bins reaches what was asked for.
struct Crossing {
  int bin;
  uint64_t need;  // What is still to be reached within the bin.
};

struct RowShared {
  PassBuffer passes[2];  // Of even and odd passes: others may still read the last one.
  uint64_t candidates[kCandidatesMax];  // Of the whole cluster.
  uint64_t weights[kCandidatesMax];
  uint64_t selected;
  CutSums warp_cuts[kRowWarps];
  CutSums cuts;
  uint64_t warp_totals[kRowWarps];
  uint64_t row_best[kRowBlocksMax];     // By rank: the block's largest logit.
  uint64_t draw_best[kRowBlocksMax];    // By rank, in rank 0: the block's best score.
  uint64_t exp_sums[kRowBlocksMax];     // By rank, in rank 0: sum of exponentials.
  uint64_t top[kSampleTopLogprobsMax];  // In rank 0: ordered tokens, in any order.
  uint32_t block_candidates[kRowBlocksMax];
  uint32_t num_top;
  Crossing crossing;
  SampleResult result;
};

inline constexpr int kRowSharedBytes = (static_cast<int>(sizeof(RowShared)) + 15) / 16 * 16;
// RowShared, then the slice.
extern __shared__ __align__(16) unsigned char row_memory[];

// A row as one block of its cluster sees it. What can be had again is not kept: registers are
// short.
struct Row {
  int first;  // The block's slice of the tokens: [first, end).
  int end;
  int pass;  // Counts passes, the same in all blocks.

  __device__ __forceinline__ RowShared* shared() const {
    return reinterpret_cast<RowShared*>(row_memory);
  }
  // Logits of the slice; the rest of the last vector is -infinity.
  __device__ __forceinline__ float4* slice() const {
    return reinterpret_cast<float4*>(row_memory + kRowSharedBytes);
  }
  __device__ __forceinline__ int num_vectors() const { return max(0, (end - first + 3) / 4); }
  __device__ __forceinline__ uint32_t rank() const { return ptx::ClusterRank(); }
  __device__ __forceinline__ uint32_t num_blocks() const { return ptx::ClusterBlocks(); }
};

// Unsigned integers in the order of floats; -0 and 0 are equal. NaN means nothing here.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FloatOfOrderedBits(uint32_t ordered) {
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}

__device__ __forceinline__ uint64_t Ordered(uint32_t key, int token) {
  return (static_cast<uint64_t>(key) << kTokenBits) | static_cast<uint32_t>(token);
}
__device__ __forceinline__ int TokenOf(uint64_t ordered) {
  return static_cast<int>(ordered & ((1u << kTokenBits) - 1));
}
__device__ __forceinline__ uint32_t KeyOf(uint64_t ordered) {
  return static_cast<uint32_t>(ordered >> kTokenBits);
}
inline constexpr uint64_t kLastOrdered = (uint64_t{1} << (32 + kTokenBits)) - 1;

struct Interval {
  uint64_t low;
  uint64_t high;  // Included.
};

// Orders tokens by z = (logit - largest) / temperature, which is never positive.
struct ScaledKey {
  float maximum;
  float inverse_temperature;

  __device__ __forceinline__ float Z(float logit) const {
    return __fmul_rn(__fsub_rn(logit, maximum), inverse_temperature);
  }
  __device__ __forceinline__ uint32_t operator()(float logit) const {
    return __float_as_uint(Z(logit)) & 0x7FFFFFFFu;
  }
  __device__ __forceinline__ float Distance(float logit) const { return -Z(logit); }
  // Keys of distances in [low, high); high may be infinite: then all others.
  __device__ __forceinline__ Interval IntervalOf(float low, float high) const {
    const uint32_t end = high < __int_as_float(0x7F800000) ? __float_as_uint(high) : 0x80000000u;
    return {Ordered(__float_as_uint(low), 0), Ordered(end, 0) - 1};
  }
};

// Orders tokens by logit.
struct LogitKey {
  float maximum;

  __device__ __forceinline__ uint32_t operator()(float logit) const {
    return OrderedBits(maximum) - OrderedBits(logit);
  }
  __device__ __forceinline__ float Distance(float logit) const { return __fsub_rn(maximum, logit); }
  // Rounding makes a distance of several logits: the bin itself says which tokens are meant.
  __device__ __forceinline__ Interval IntervalOf(float, float) const { return {0, kLastOrdered}; }
};

// floor(2^32 * exp(z)), in two halves; scaling by powers of two is exact, and so is what is left of
// a float after its integer part.
struct Weight {
  uint32_t low;   // 16 bits
  uint32_t high;  // 17 bits
};
__device__ __forceinline__ Weight WeightOfKey(uint32_t key) {
  const float scaled = __fmul_rn(ExpF32(-__uint_as_float(key)), 65536.0f);
  const uint32_t high = __float2uint_rz(scaled);
  const float rest = __fsub_rn(scaled, __uint2float_rn(high));
  return {__float2uint_rz(__fmul_rn(rest, 65536.0f)), high};
}
__device__ __forceinline__ uint64_t Sum(const Weight& weight) {
  return weight.low + (static_cast<uint64_t>(weight.high) << 16);
}

// Tokens that a pass looks at: those within a cut, in one bin of its histogram (any, if negative),
// and within an interval of the order. Bins have equal width, since logits spread over few binades
// and would crowd in a few bins of their bits. A product with a power of two is exact and monotone.
struct Range {
  int cut;
  int bin;
  Interval interval;

  __device__ __forceinline__ float BinsPerUnit() const { return static_cast<float>(kBins >> cut); }
  // The last bin of the open cut takes the rest.
  __device__ __forceinline__ int BinOf(float distance) const {
    return static_cast<int>(
        fminf(__fmul_rn(distance, BinsPerUnit()), static_cast<float>(kBins - 1)));
  }
  template <typename Key>
  __device__ __forceinline__ bool Has(const Key& key, float logit, int token) const {
    const float distance = key.Distance(logit);
    if (cut < kNumCuts && !(distance < static_cast<float>(1 << cut))) return false;
    if (bin >= 0 && BinOf(distance) != bin) return false;
    const uint64_t ordered = Ordered(key(logit), token);
    return ordered >= interval.low && ordered <= interval.high;
  }
  template <typename Key>
  __device__ __forceinline__ void TakeBin(const Key& key, int which) {
    bin = which;
    const bool open = cut == kNumCuts && which == kBins - 1;
    const Interval of_bin = key.IntervalOf(
        static_cast<float>(which) / BinsPerUnit(),
        open ? __int_as_float(0x7F800000) : static_cast<float>(which + 1) / BinsPerUnit());
    interval.low = max(interval.low, of_bin.low);
    interval.high = min(interval.high, of_bin.high);
  }
};

// Adds a token (of the lanes with `in`) to its bin. Lanes that share one bin add up first: rows
// with a few distinct values would otherwise queue at one address.
template <bool kByWeight>
__device__ __forceinline__ void AddToBin(bool in, int bin, uint32_t key, PassBuffer* buffer) {
  const unsigned mask = __ballot_sync(kAllLanes, in);
  if (!in) return;
  Weight weight = {1, 0};
  if constexpr (kByWeight) weight = WeightOfKey(key);
  int same = 0;
  __match_all_sync(mask, bin, &same);
  if (same != 0) {
    weight.low = __reduce_add_sync(mask, weight.low);
    if constexpr (kByWeight) weight.high = __reduce_add_sync(mask, weight.high);
    if (static_cast<int>(threadIdx.x % 32) != __ffs(static_cast<int>(mask)) - 1) return;
  }
  if (weight.low != 0) atomicAdd(&buffer->low[bin], weight.low);
  if (kByWeight && weight.high != 0) atomicAdd(&buffer->high[bin], weight.high);
}

// Below it a token has no weight: exp(-22.2) * 2^32 < 1.
inline constexpr float kWeightlessDistance = 22.2f;

// Histogram of the block's tokens in `range`: by first bins, or by bits from `shift` up.
template <bool kByWeight, bool kFirst, typename Key>
__device__ __forceinline__ void FillHistogram(const Row& row, const Key& key, const Range& range,
                                              int shift, PassBuffer* buffer) {
  const auto* logits = reinterpret_cast<const float*>(row.slice());
  const int count = row.end - row.first;
#pragma unroll 2
  for (int base = 0; base < count; base += kRowThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const float logit = i < count ? logits[i] : 0.0f;
    const uint32_t token_key = key(logit);
    bool in = i < count && range.Has(key, logit, row.first + i);
    if constexpr (kByWeight) in = in && __uint_as_float(token_key) < kWeightlessDistance;
    const int bin =
        kFirst
            ? range.BinOf(key.Distance(logit))
            : static_cast<int>((Ordered(token_key, row.first + i) - range.interval.low) >> shift);
    AddToBin<kByWeight>(in, bin, token_key, buffer);
  }
}

// The least integer that is at least 1 and not below top_p of the total.
__device__ __forceinline__ uint64_t NeedOfTotal(float top_p, uint64_t total) {
  const double enough = __dmul_rn(static_cast<double>(top_p), static_cast<double>(total));
  return max(static_cast<uint64_t>(__double2ull_ru(enough)), uint64_t{1});
}

// Finds the bin where the running sum of `amount` (this thread's bin) reaches `need`.
__device__ __forceinline__ Crossing FindCrossing(RowShared* shared, uint64_t amount,
                                                 uint64_t need) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint64_t inclusive = amount;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += before;
  }
  if (lane == 31) shared->warp_totals[warp] = inclusive;
  if (threadIdx.x == 0) shared->crossing = {kBins - 1, 0};
  __syncthreads();
#pragma unroll 4
  for (int w = 0; w < kRowWarps; ++w) {
    if (w < warp) inclusive += shared->warp_totals[w];
  }
  const uint64_t exclusive = inclusive - amount;
  if (exclusive < need && need <= inclusive) {
    shared->crossing = {static_cast<int>(threadIdx.x), need - exclusive};
  }
  __syncthreads();
  return shared->crossing;
}

// The buffer of the next pass. Free: every block passed the barrier of the pass before, and so has
// read what the buffer held of the pass before that.
__device__ __forceinline__ PassBuffer* NextBuffer(Row* row) {
  PassBuffer* buffer = &row->shared()->passes[row->pass % 2];
  ++row->pass;
  return buffer;
}

// A thread's sums, cumulative over the cuts. At most 64 tokens: halves of weights do not overflow,
// nor do their sums over a warp.
struct ThreadCuts {
  uint32_t count[kNumCuts + 1] = {};
  uint32_t low[kNumCuts + 1] = {};
  uint32_t high[kNumCuts + 1] = {};

  __device__ __forceinline__ void Add(float distance, const Weight& weight) {
#pragma unroll
    for (int c = 0; c <= kNumCuts; ++c) {
      if (c < kNumCuts && !(distance < static_cast<float>(1 << c))) continue;
      count[c] += 1;
      low[c] += weight.low;
      high[c] += weight.high;
    }
  }
};

// Sums over the block's tokens up to `limit`, into `sums`.
template <bool kByWeight, typename Key>
__device__ __forceinline__ void AddUpCuts(const Row& row, const Key& key, uint64_t limit,
                                          CutSums* sums) {
  const auto* logits = reinterpret_cast<const float*>(row.slice());
  const int count = row.end - row.first;
  ThreadCuts own;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowThreads) {
    const float logit = logits[i];
    const uint32_t token_key = key(logit);
    if (Ordered(token_key, row.first + i) > limit) continue;
    Weight weight = {0, 0};
    if constexpr (kByWeight) weight = WeightOfKey(token_key);
    own.Add(key.Distance(logit), weight);
  }
  CutSums& of_warp = row.shared()->warp_cuts[threadIdx.x / 32];
#pragma unroll
  for (int c = 0; c <= kNumCuts; ++c) {
    const uint32_t sum = __reduce_add_sync(kAllLanes, own.count[c]);
    Weight weight = {0, 0};
    if constexpr (kByWeight) {
      weight = {__reduce_add_sync(kAllLanes, own.low[c]),
                __reduce_add_sync(kAllLanes, own.high[c])};
    }
    if (threadIdx.x % 32 == 0) {
      of_warp.count[c] = sum;
      of_warp.weight[c] = Sum(weight);
    }
  }
  __syncthreads();
  if (threadIdx.x > kNumCuts) return;
  uint32_t total_count = 0;
  uint64_t total_weight = 0;
#pragma unroll 4
  for (int w = 0; w < kRowWarps; ++w) {
    total_count += row.shared()->warp_cuts[w].count[threadIdx.x];
    total_weight += row.shared()->warp_cuts[w].weight[threadIdx.x];
  }
  sums->count[threadIdx.x] = total_count;
  sums->weight[threadIdx.x] = total_weight;
}

// The sums over the whole row, in shared memory.
template <bool kByWeight, typename Key>
__device__ __forceinline__ const CutSums& CutPass(Row* row, const Key& key, uint64_t limit) {
  PassBuffer* buffer = NextBuffer(row);
  AddUpCuts<kByWeight>(*row, key, limit, &buffer->cuts);
  ptx::ClusterSync();
  CutSums& cuts = row->shared()->cuts;
  // Sixteen lanes a cut, a lane a block.
  static_assert((kNumCuts + 1) * kRowBlocksMax % 32 == 0);
  if (threadIdx.x < (kNumCuts + 1) * kRowBlocksMax) {
    const auto cut = static_cast<int>(threadIdx.x) / kRowBlocksMax;
    const uint32_t block = threadIdx.x % kRowBlocksMax;
    uint64_t weight = 0;
    uint32_t count = 0;
    if (block < row->num_blocks()) {
      weight = ptx::LoadCluster64(ptx::AddressInBlock(&buffer->cuts.weight[cut], block));
      count = ptx::LoadCluster32(ptx::AddressInBlock(&buffer->cuts.count[cut], block));
    }
#pragma unroll
    for (int step = kRowBlocksMax / 2; step > 0; step /= 2) {
      weight += __shfl_xor_sync(kAllLanes, weight, step);
      count += __shfl_xor_sync(kAllLanes, count, step);
    }
    if (block == 0) {
      cuts.weight[cut] = weight;
      cuts.count[cut] = count;
    }
  }
  __syncthreads();
  return cuts;
}

template <bool kByWeight, bool kFirst, typename Key>
__device__ __forceinline__ Crossing HistogramPass(Row* row, const Key& key, const Range& range,
                                                  int shift, uint64_t need) {
  PassBuffer* buffer = NextBuffer(row);
  const int bin = static_cast<int>(threadIdx.x);
  buffer->low[bin] = 0;
  buffer->high[bin] = 0;
  __syncthreads();
  FillHistogram<kByWeight, kFirst>(*row, key, range, shift, buffer);
  ptx::ClusterSync();
  uint64_t amount = 0;
#pragma unroll 4
  for (uint32_t r = 0; r < row->num_blocks(); ++r) {
    amount += ptx::LoadCluster32(ptx::AddressInBlock(&buffer->low[bin], r));
    if constexpr (kByWeight) {
      const uint32_t high = ptx::LoadCluster32(ptx::AddressInBlock(&buffer->high[bin], r));
      amount += static_cast<uint64_t>(high) << 16;
    }
  }
  return FindCrossing(row->shared(), amount, need);
}

// Brings the ordered tokens of `range`, of the whole cluster, to each block's list. Returns how
// many there are; when they do not fit, the list means nothing.
template <typename Key>
__device__ __forceinline__ int GatherCandidates(Row* row, const Key& key, const Range& range) {
  RowShared* shared = row->shared();
  PassBuffer* buffer = NextBuffer(row);
  if (threadIdx.x == 0) buffer->num_candidates = 0;
  __syncthreads();
  const auto* logits = reinterpret_cast<const float*>(row->slice());
  const int count = row->end - row->first;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kRowThreads) {
    const float logit = logits[i];
    if (!range.Has(key, logit, row->first + i)) continue;
    const uint32_t at = atomicAdd(&buffer->num_candidates, 1u);
    if (at < kCandidatesMax) buffer->candidates[at] = Ordered(key(logit), row->first + i);
  }
  ptx::ClusterSync();
  if (threadIdx.x < row->num_blocks()) {
    shared->block_candidates[threadIdx.x] =
        ptx::LoadCluster32(ptx::AddressInBlock(&buffer->num_candidates, threadIdx.x));
  }
  __syncthreads();
  // Thread t takes candidate t of all.
  int total = 0;
  int own_block = -1;
  int own_index = 0;
  for (uint32_t r = 0; r < row->num_blocks(); ++r) {
    const int here = static_cast<int>(threadIdx.x) - total;
    const int found = static_cast<int>(shared->block_candidates[r]);
    if (here >= 0 && here < found) {
      own_block = static_cast<int>(r);
      own_index = here;
    }
    total += found;
  }
  if (total <= kCandidatesMax && own_block >= 0) {
    const uint64_t ordered = ptx::LoadCluster64(
        ptx::AddressInBlock(&buffer->candidates[own_index], static_cast<uint32_t>(own_block)));
    shared->candidates[threadIdx.x] = ordered;
    shared->weights[threadIdx.x] = Sum(WeightOfKey(KeyOf(ordered)));
  }
  __syncthreads();
  return total;
}

// The candidate at which the running sum of weights (or the count) over the candidates in order
// reaches `need`, or with kByTotal top_p of their sum; `otherwise` if none does.
template <bool kByWeight, bool kByTotal>
__device__ __forceinline__ uint64_t SelectCandidate(RowShared* shared, int num_candidates,
                                                    uint64_t need, float top_p,
                                                    uint64_t otherwise) {
  if (threadIdx.x == 0) shared->selected = otherwise;
  __syncthreads();
  const auto own = static_cast<int>(threadIdx.x);
  if (own < num_candidates) {
    const uint64_t ordered = shared->candidates[own];
    uint64_t before = 0;
    uint64_t total = 0;
    for (int i = 0; i < num_candidates; ++i) {
      const uint64_t weight = kByWeight ? shared->weights[i] : 1;
      total += weight;
      if (shared->candidates[i] < ordered) before += weight;
    }
    if constexpr (kByTotal) need = NeedOfTotal(top_p, total);
    const uint64_t through = before + (kByWeight ? shared->weights[own] : 1);
    if (before < need && need <= through) shared->selected = ordered;
  }
  __syncthreads();
  return shared->selected;
}

// The last ordered token that stays when only tokens up to `limit` are left and of these are kept
// the first `need`, or with kByWeight those up to which weights first reach top_p of their sum. All
// blocks of the cluster call it together and get the same.
template <bool kByWeight, typename Key>
__device__ __forceinline__ uint64_t Select(Row* row, const Key& key, uint64_t limit, uint64_t need,
                                           float top_p) {
  const CutSums& cuts = CutPass<kByWeight>(row, key, limit);
  if constexpr (kByWeight) need = NeedOfTotal(top_p, cuts.weight[kNumCuts]);
  Range range = {0, -1, {0, limit}};
  const auto amount = [&](int c) { return kByWeight ? cuts.weight[c] : uint64_t{cuts.count[c]}; };
  while (range.cut < kNumCuts && amount(range.cut) < need) ++range.cut;
  if (cuts.count[range.cut] > kCandidatesMax) {
    const Crossing at = HistogramPass<kByWeight, true>(row, key, range, 0, need);
    range.TakeBin(key, at.bin);
    need = at.need;
  }
  for (;;) {
    const int num_candidates = GatherCandidates(row, key, range);
    if (num_candidates <= kCandidatesMax) {
      return SelectCandidate<kByWeight, false>(row->shared(), num_candidates, need, 0.0f,
                                               range.interval.high);
    }
    // Ends: an interval of fewer than kBins is cut into single tokens.
    Interval& interval = range.interval;
    const int bits = 64 - __clzll(static_cast<long long>(interval.high - interval.low));
    const int shift = max(bits - kBinsLog2, 0);
    const Crossing at = HistogramPass<kByWeight, false>(row, key, range, shift, need);
    need = at.need;
    interval.low += static_cast<uint64_t>(at.bin) << shift;
    interval.high = min(interval.high, interval.low + (uint64_t{1} << shift) - 1);
  }
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
