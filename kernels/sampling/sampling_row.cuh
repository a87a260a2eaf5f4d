// One row of logits held by a cluster of blocks, and selection in it without sorting. Private to
// sampling_cuda.cu.
//
// The total order of tokens ("likelier first, lower id of a tie first") is one of 64-bit integers:
// a key that falls as the value rises, then the id. Selecting the tokens that a filter keeps is
// finding the last of these integers that stays. Each pass narrows an interval of them by a
// histogram of kBins bins (counts, and sums of integer weights); bins are added up over the cluster
// through distributed shared memory, one cluster barrier a pass. Sums of integers do not depend on
// the order of atomics, so the result is exact and always the same.
#ifndef BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
#define BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_

#include <cstdint>

#include "kernels/ptx/cluster.cuh"
#include "kernels/sampling/sampling.h"

namespace baton::kernels {

inline constexpr int kRowBlocks = 8;  // Blocks of a cluster.
inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr int kBins = kRowThreads;  // A thread adds up one bin.
inline constexpr int kBinsLog2 = 9;
inline constexpr int kTokenBits = 18;
inline constexpr uint32_t kAllLanes = ~0u;

// Sums over at most 2^15 tokens of a block: neither half of the weights overflows.
struct Histogram {
  uint32_t count[kBins];
  uint32_t weight_low[kBins];   // Bits 0 to 15 of the weights.
  uint32_t weight_high[kBins];  // Bits 16 to 32.
};

// Where the running sum over the bins reaches what was asked for.
struct Crossing {
  int bin;
  uint32_t count;  // Tokens in the bin.
  uint64_t need;   // What is still to be reached within the bin.
};

struct RowShared {
  Histogram histograms[2];  // Of even and odd passes: others may still read the last one.
  uint64_t warp_totals[kRowWarps];
  uint64_t row_best[kRowBlocks];        // By rank: the block's largest logit.
  uint64_t draw_best[kRowBlocks];       // By rank, in rank 0: the block's best score.
  uint64_t exp_sums[kRowBlocks];        // By rank, in rank 0: bits of a double.
  uint64_t top[kSampleTopLogprobsMax];  // In rank 0: ordered tokens, in any order.
  uint32_t num_top;
  Crossing crossing;
  SampleResult result;
};

// A row as one block of its cluster sees it.
struct Row {
  RowShared* shared;
  const float4* slice;  // Logits of tokens [first, end), in shared memory; the rest of the last
                        // vector is -infinity.
  int first;
  int end;
  int num_vectors;
  int pass;  // Counts selections' passes, the same in all blocks.
  uint32_t rank;
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
  // The first pass has bins of equal width in z, since logits spread over few binades. The product
  // with a power of two is exact, so bin b is exactly the keys of [b / 16, (b + 1) / 16).
  static constexpr float kBinsPerUnit = 16.0f;
  __device__ __forceinline__ int FirstBin(uint32_t key) const {
    return static_cast<int>(
        fminf(__fmul_rn(__uint_as_float(key), kBinsPerUnit), static_cast<float>(kBins - 1)));
  }
  __device__ __forceinline__ Interval FirstBinInterval(int bin) const {
    const float low = static_cast<float>(bin) / kBinsPerUnit;
    const float high = static_cast<float>(bin + 1) / kBinsPerUnit;
    const uint32_t end = bin == kBins - 1 ? 0x80000000u : __float_as_uint(high);
    return {Ordered(__float_as_uint(low), 0), Ordered(end, 0) - 1};
  }
};

// Orders tokens by logit.
struct LogitKey {
  uint32_t largest;  // OrderedBits of the largest logit.

  __device__ __forceinline__ uint32_t operator()(float logit) const {
    return largest - OrderedBits(logit);
  }
  __device__ __forceinline__ int FirstBin(uint32_t key) const {
    return static_cast<int>(key >> (32 - kBinsLog2));
  }
  __device__ __forceinline__ Interval FirstBinInterval(int bin) const {
    const auto low = static_cast<uint64_t>(bin) << (32 - kBinsLog2 + kTokenBits);
    return {low, low + (uint64_t{1} << (32 - kBinsLog2 + kTokenBits)) - 1};
  }
};

// floor(2^32 * exp(z)): the scaling is exact.
__device__ __forceinline__ uint64_t WeightOfKey(uint32_t key) {
  return __float2ull_rz(__fmul_rn(ExpF32(-__uint_as_float(key)), 4294967296.0f));
}

// Adds a token (of the lanes with `in`) to its bin. Lanes that share one bin add up first: rows
// with a few distinct values would otherwise queue at one address.
template <bool kByWeight>
__device__ __forceinline__ void AddToBin(bool in, int bin, uint32_t key, Histogram* histogram) {
  const unsigned mask = __ballot_sync(kAllLanes, in);
  if (!in) return;
  const uint64_t weight = kByWeight ? WeightOfKey(key) : 0;
  uint32_t count = 1;
  auto low = static_cast<uint32_t>(weight & 0xFFFFu);
  auto high = static_cast<uint32_t>(weight >> 16);
  int same = 0;
  __match_all_sync(mask, bin, &same);
  if (same != 0) {
    count = static_cast<uint32_t>(__popc(mask));
    if constexpr (kByWeight) {
      low = __reduce_add_sync(mask, low);
      high = __reduce_add_sync(mask, high);
    }
    if (static_cast<int>(threadIdx.x % 32) != __ffs(static_cast<int>(mask)) - 1) return;
  }
  atomicAdd(&histogram->count[bin], count);
  if constexpr (kByWeight) {
    if (low != 0) atomicAdd(&histogram->weight_low[bin], low);
    if (high != 0) atomicAdd(&histogram->weight_high[bin], high);
  }
}

// Histogram of the block's tokens within `interval`. `shift` < 0: the bins of the first pass.
template <bool kByWeight, typename Key>
__device__ __forceinline__ void FillHistogram(const Row& row, const Key& key,
                                              const Interval& interval, int shift,
                                              Histogram* histogram) {
  const auto* logits = reinterpret_cast<const float*>(row.slice);
  const int count = row.end - row.first;
#pragma unroll 2
  for (int base = 0; base < count; base += kRowThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int token = row.first + i;
    const uint32_t token_key = key(i < count ? logits[i] : 0.0f);
    const uint64_t ordered = Ordered(token_key, token);
    const bool in = i < count && ordered >= interval.low && ordered <= interval.high;
    const int bin =
        shift < 0 ? key.FirstBin(token_key) : static_cast<int>((ordered - interval.low) >> shift);
    AddToBin<kByWeight>(in, bin, token_key, histogram);
  }
}

// Finds the bin where the running sum of `amount` (this thread's bin) reaches what is needed:
// `need`, or with kByTotal the least integer that is not below top_p of the total, at least 1.
template <bool kByTotal>
__device__ __forceinline__ Crossing FindCrossing(RowShared* shared, uint64_t amount, uint32_t count,
                                                 uint64_t need, float top_p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint64_t inclusive = amount;
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t before = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += before;
  }
  if (lane == 31) shared->warp_totals[warp] = inclusive;
  if (threadIdx.x == 0) shared->crossing = {kBins - 1, 0, 0};
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < kRowWarps; ++w) {
    if (w == warp) inclusive += total;
    total += shared->warp_totals[w];
  }
  if constexpr (kByTotal) {
    const double enough = __dmul_rn(static_cast<double>(top_p), static_cast<double>(total));
    need = max(static_cast<uint64_t>(__double2ull_ru(enough)), uint64_t{1});
  }
  const uint64_t exclusive = inclusive - amount;
  if (exclusive < need && need <= inclusive) {
    shared->crossing = {static_cast<int>(threadIdx.x), count, need - exclusive};
  }
  __syncthreads();
  return shared->crossing;
}

template <bool kByWeight, bool kByTotal, typename Key>
__device__ __forceinline__ Crossing SelectPass(Row* row, const Key& key, const Interval& interval,
                                               int shift, uint64_t need, float top_p) {
  // Free: every block passed the barrier of the pass before this one, and so has read the
  // histograms of the pass before that.
  Histogram* histogram = &row->shared->histograms[row->pass % 2];
  ++row->pass;
  const int bin = static_cast<int>(threadIdx.x);
  histogram->count[bin] = 0;
  histogram->weight_low[bin] = 0;
  histogram->weight_high[bin] = 0;
  __syncthreads();
  FillHistogram<kByWeight>(*row, key, interval, shift, histogram);
  ptx::ClusterSync();
  uint32_t count = 0;
  uint64_t weight = 0;
#pragma unroll 4
  for (uint32_t r = 0; r < kRowBlocks; ++r) {
    count += ptx::LoadCluster32(ptx::AddressInBlock(&histogram->count[bin], r));
    if constexpr (kByWeight) {
      weight += ptx::LoadCluster32(ptx::AddressInBlock(&histogram->weight_low[bin], r));
      weight += static_cast<uint64_t>(
                    ptx::LoadCluster32(ptx::AddressInBlock(&histogram->weight_high[bin], r)))
                << 16;
    }
  }
  return FindCrossing<kByTotal>(row->shared, kByWeight ? weight : count, count, need, top_p);
}

// The last ordered token that stays when only tokens up to `limit` are left and of these are kept
// the first `need`, or with kByWeight those up to which weights first reach top_p of their sum. All
// blocks of the cluster call it together and get the same.
template <bool kByWeight, typename Key>
__device__ __forceinline__ uint64_t Select(Row* row, const Key& key, uint64_t limit, uint64_t need,
                                           float top_p) {
  Interval interval = {0, limit};
  Crossing at = SelectPass<kByWeight, kByWeight>(row, key, interval, -1, need, top_p);
  interval = key.FirstBinInterval(at.bin);
  interval.high = min(interval.high, limit);
  // A bin that stays as a whole needs no narrowing; one token is always the last that stays.
  while (at.count > 1 && (kByWeight || at.count != at.need) && interval.low < interval.high) {
    const int bits = 64 - __clzll(static_cast<long long>(interval.high - interval.low));
    const int shift = max(bits - kBinsLog2, 0);
    at = SelectPass<kByWeight, false>(row, key, interval, shift, at.need, top_p);
    interval.low += static_cast<uint64_t>(at.bin) << shift;
    interval.high = min(interval.high, interval.low + (uint64_t{1} << shift) - 1);
  }
  return interval.high;
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
