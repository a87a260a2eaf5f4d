// One row of logits held by a cluster of blocks, and selection in it without sorting. Private to
// sampling_cuda.cu.
//
// The total order of tokens ("likelier first, lower id of a tie first") is one of 64-bit integers:
// a key that falls as the value rises, then the id. Selecting the tokens that a filter keeps is
// finding the last of these integers that stays. A histogram of kBins bins (of counts, or of sums
// of integer weights) tells in which bin it is; when at most kCandidatesMax tokens are there, they
// are gathered and compared with each other, otherwise the bin is cut by another histogram. Blocks
// read each other's bins and candidates from distributed shared memory: one cluster barrier a pass.
// Sums of integers do not depend on the order of atomics, so the result is exact and always the
// same.
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

// What other blocks of the cluster read of one pass. Sums over at most 2^15 tokens of a block:
// neither half of the weights overflows.
struct PassBuffer {
  uint32_t low[kBins];   // Counts, or bits 0 to 15 of the weights.
  uint32_t high[kBins];  // Bits 16 to 32.
  uint64_t candidates[kCandidatesMax];
  uint32_t num_candidates;  // Found, even if more than fit.
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

// The first histogram has bins of equal width in the value, since logits spread over few binades
// and would crowd in a few bins of their bits. The map is monotone; the last bin is open.
inline constexpr float kBinsPerUnit = 16.0f;
__device__ __forceinline__ int BinOfDistance(float distance) {
  return static_cast<int>(fminf(__fmul_rn(distance, kBinsPerUnit), static_cast<float>(kBins - 1)));
}

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
  __device__ __forceinline__ int FirstBin(float logit) const { return BinOfDistance(-Z(logit)); }
  // The product with a power of two is exact: bin b has exactly the keys of [b / 16, (b + 1) / 16).
  __device__ __forceinline__ Interval FirstBinInterval(int bin) const {
    const float low = static_cast<float>(bin) / kBinsPerUnit;
    const float high = static_cast<float>(bin + 1) / kBinsPerUnit;
    const uint32_t end = bin == kBins - 1 ? 0x80000000u : __float_as_uint(high);
    return {Ordered(__float_as_uint(low), 0), Ordered(end, 0) - 1};
  }
};

// Orders tokens by logit.
struct LogitKey {
  float maximum;

  __device__ __forceinline__ uint32_t operator()(float logit) const {
    return OrderedBits(maximum) - OrderedBits(logit);
  }
  __device__ __forceinline__ int FirstBin(float logit) const {
    return BinOfDistance(__fsub_rn(maximum, logit));
  }
  __device__ __forceinline__ Interval FirstBinInterval(int) const { return {0, kLastOrdered}; }
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

// Tokens that a pass looks at: those of a bin of the first histogram (any, if negative) within an
// interval.
struct Range {
  int bin;
  Interval interval;

  template <typename Key>
  __device__ __forceinline__ bool Has(const Key& key, float logit, uint64_t ordered) const {
    return ordered >= interval.low && ordered <= interval.high &&
           (bin < 0 || key.FirstBin(logit) == bin);
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
    const uint64_t ordered = Ordered(token_key, row.first + i);
    bool in = i < count && range.Has(key, logit, ordered);
    if constexpr (kByWeight) in = in && __uint_as_float(token_key) < kWeightlessDistance;
    const int bin =
        kFirst ? key.FirstBin(logit) : static_cast<int>((ordered - range.interval.low) >> shift);
    AddToBin<kByWeight>(in, bin, token_key, buffer);
  }
}

// The least integer that is at least 1 and not below top_p of the total.
__device__ __forceinline__ uint64_t NeedOfTotal(float top_p, uint64_t total) {
  const double enough = __dmul_rn(static_cast<double>(top_p), static_cast<double>(total));
  return max(static_cast<uint64_t>(__double2ull_ru(enough)), uint64_t{1});
}

// Finds the bin where the running sum of `amount` (this thread's bin) reaches `need`, or with
// kByTotal top_p of the total.
template <bool kByTotal>
__device__ __forceinline__ Crossing FindCrossing(RowShared* shared, uint64_t amount, uint64_t need,
                                                 float top_p) {
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
  uint64_t total = 0;
#pragma unroll 4
  for (int w = 0; w < kRowWarps; ++w) {
    if (w == warp) inclusive += total;
    total += shared->warp_totals[w];
  }
  if constexpr (kByTotal) need = NeedOfTotal(top_p, total);
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

// With kFirst and kByWeight what is needed is top_p of the total, otherwise `need`.
template <bool kByWeight, bool kFirst, typename Key>
__device__ __forceinline__ Crossing HistogramPass(Row* row, const Key& key, const Range& range,
                                                  int shift, uint64_t need, float top_p) {
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
  return FindCrossing < kByWeight && kFirst > (row->shared(), amount, need, top_p);
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
    const uint64_t ordered = Ordered(key(logit), row->first + i);
    if (!range.Has(key, logit, ordered)) continue;
    const uint32_t at = atomicAdd(&buffer->num_candidates, 1u);
    if (at < kCandidatesMax) buffer->candidates[at] = ordered;
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
  Range range = {-1, {0, limit}};
  Crossing at = HistogramPass<kByWeight, true>(row, key, range, 0, need, top_p);
  range.bin = at.bin;
  range.interval = key.FirstBinInterval(at.bin);
  range.interval.high = min(range.interval.high, limit);
  for (;;) {
    const int num_candidates = GatherCandidates(row, key, range);
    if (num_candidates <= kCandidatesMax) {
      return SelectCandidate<kByWeight, false>(row->shared(), num_candidates, at.need, 0.0f,
                                               range.interval.high);
    }
    // Ends: an interval of fewer than kBins is cut into single tokens.
    Interval& interval = range.interval;
    const int bits = 64 - __clzll(static_cast<long long>(interval.high - interval.low));
    const int shift = max(bits - kBinsLog2, 0);
    at = HistogramPass<kByWeight, false>(row, key, range, shift, at.need, 0.0f);
    interval.low += static_cast<uint64_t>(at.bin) << shift;
    interval.high = min(interval.high, interval.low + (uint64_t{1} << shift) - 1);
  }
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_SAMPLING_ROW_CUH_
