// A consumer warpgroup of the wgmma kernel: 64 query rows against all their keys.
//
// One stream of steps over all key tiles of all work: a step starts scores = Q K^T of its tile and
// then out += weights V of the tile before, which may belong to the work before; the softmax of the
// scores runs while the tensor cores are at the second product. The consumers start their products
// in turn, so that the softmax of one meets the products of the others.
//
// A row's weights are 2^(exponent - shift). The shift is the largest exponent of the first tile
// that the row sees, and stays: float32 and bfloat16 have room for weights above 1, and what scales
// all of them falls out in the end. So most steps look for no maximum and rescale nothing. Sums
// show when the room was too small; then the softmax of the step is done over (Reweigh).
//
// Bits of a row depend on nothing but its queries, its position and the keys before it, as long as
// the values of later keys in its last tile are finite (zero weights multiply them): tiles lie
// at absolute multiples of kKeys and are visited downwards; a tile in which the row sees nothing
// adds products of zero, before its first key and below its window; whether its shift changes is
// the row's own affair, and a neighbour's change multiplies it by 1.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_CONSUMER_CUH_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_CONSUMER_CUH_

#include <cstdint>

#include "kernels/launch/half_types.cuh"
#include "kernels/prefill_attention/prefill_sm90_shared.cuh"
#include "kernels/ptx/named_barrier.cuh"
#include "kernels/ptx/proxy_fence.cuh"
#include "kernels/ptx/wgmma_attention.cuh"

namespace baton::kernels {

// Barriers 1, 2, ...: consumer i may start its products. The next ones: consumer i by itself.
constexpr int kOrderBarrier = 1;
constexpr int kOwnBarrier = 4;

template <typename C>
struct Sm90Consumer {
  const PrefillAttentionParams& p;
  Sm90Shared<C>& shared;
  const int consumer;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);

  RingPlace<C::kKeyStages> key = {};
  RingPlace<C::kValueStages> value = {};
  RingPlace<C::kQueries> query = {};
  RingPlace<C::kItems> place = {};

  // Rows `row` and `row` + 8 of the 64.
  int32_t position[2] = {};
  int32_t first_key[2] = {};
  float shift[2] = {};  // Weights are 2^(score * factor - shift); -inf: no key seen yet.
  float sum[2] = {};    // Of weights, over this lane's columns.
  uint16_t* out_row[2] = {};

  // The tile whose weights are ready and whose V is still to be added.
  bool pending = false;
  bool first_of_work = false;
  uint32_t skipped = 0;     // Tiles after it whose V is for others.
  int32_t value_begin = 0;  // Keys of it whose V may be anything lie outside of these.
  int32_t value_end = C::kKeys;

  __device__ __forceinline__ void WaitForTurn() const {
    ptx::NamedBarrierSync(kOrderBarrier + consumer, 256);
  }
  __device__ __forceinline__ void PassTurn() const {
    ptx::NamedBarrierArrive(kOrderBarrier + (consumer + 1) % C::kConsumers, 256);
  }
  __device__ __forceinline__ void Release(uint64_t* empty) const {
    if (lane == 0) ptx::MbarrierArrive(empty);
  }

  __device__ __forceinline__ void StartScores(float (&scores)[C::kKeys / 2]) {
    const uint64_t a = ptx::WgmmaDescriptorSwizzle128(shared.query[query.slot][consumer]);
    const uint64_t b = ptx::WgmmaDescriptorSwizzle128(shared.key[key.slot]);
#pragma unroll
    for (int k = 0; k < C::kDim / 16; ++k) {
      ptx::WgmmaScores<C::kType, C::kKeys>::Run(
          scores, a + k / 4 * (64 * 128 / 16) + k % 4 * ptx::kWgmmaDescriptorStepK16,
          b + k / 4 * (C::kKeyColumnBytes / 16) + k % 4 * ptx::kWgmmaDescriptorStepK16, k > 0);
    }
  }

  __device__ __forceinline__ void StartValues(float (&out)[C::kDim / 2],
                                              const uint32_t (&weights)[C::kKeys / 4]) {
    const uint64_t b = ptx::WgmmaDescriptorTransposed(shared.value[value.slot], C::kKeyColumnBytes);
#pragma unroll
    for (int k = 0; k < C::kKeys / 16; ++k) {
      ptx::WgmmaValues<C::kType, C::kDim>::Run(out, &weights[4 * k],
                                               b + k * ptx::kWgmmaDescriptorStepTransposed,
                                               k > 0 || !first_of_work);
    }
  }

  __device__ __forceinline__ void WaitForQueries() const {
    ptx::MbarrierWait(&shared.barriers.query_full[query.slot][consumer], query.parity);
  }
  __device__ __forceinline__ void WaitForValues() const {
    ptx::MbarrierWait(&shared.barriers.value_full[value.slot], value.parity);
  }

  // Zeros V of the pending tile where no sequence's key is: weights there are zero, but 0 * NaN is
  // not. Every consumer does it, for itself.
  __device__ __forceinline__ void ClearForeignValues() const {
    if (value_begin == 0 && value_end == C::kKeys) return;
    WaitForValues();
    constexpr int kPieces = C::kDim / 8;
    for (int i = static_cast<int>(threadIdx.x % 128); i < C::kKeys * kPieces; i += 128) {
      const int r = i / kPieces;
      if (r >= value_begin && r < value_end) continue;
      uint8_t* at =
          shared.value[value.slot] + i % kPieces / 8 * C::kKeyColumnBytes + r * 128 + i % 8 * 16;
      *reinterpret_cast<uint4*>(at) = uint4{0, 0, 0, 0};
    }
    ptx::FenceProxyAsyncShared();
    ptx::NamedBarrierSync(kOwnBarrier + consumer, 128);
  }

  // Multiplies a score, to give an exponent of 2.
  __device__ __forceinline__ float Factor() const {
    return C::kSoftcap ? kLog2E : p.scale * kLog2E;
  }

  // What comes before the exponential: the cap, and -inf where a row may not look.
  template <bool kMask>
  __device__ __forceinline__ void CapAndMask(float (&scores)[C::kKeys / 2], int32_t tile) const {
    if constexpr (C::kSoftcap) {
      const float inner = 2 * kLog2E * p.scale / p.softcap;
#pragma unroll
      for (int i = 0; i < C::kKeys / 2; ++i) {
        scores[i] = SoftcappedScore(scores[i], inner, p.softcap);
      }
    }
    if constexpr (kMask) {
      const int32_t column = tile * C::kKeys + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < C::kKeys / 2; ++i) {
        const int32_t at = i / 4 * 8 + i % 2;
        const bool visible =
            at <= position[i / 2 % 2] - column && at >= first_key[i / 2 % 2] - column;
        scores[i] = visible ? scores[i] : -INFINITY;
      }
    }
  }

  // The largest score of row r, times the factor.
  __device__ __forceinline__ float LargestExponent(const float (&scores)[C::kKeys / 2],
                                                   int r) const {
    float chain[4];  // Short ones: while it does this, a warp is nearly alone.
#pragma unroll
    for (int i = 0; i < C::kKeys / 8; ++i) {
      const float pair = fmaxf(scores[4 * i + 2 * r], scores[4 * i + 2 * r + 1]);
      chain[i % 4] = i < 4 ? pair : fmaxf(chain[i % 4], pair);
    }
    float most = fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 2));
    return most == -INFINITY ? most : most * Factor();
  }

  // Rows that have seen no key before shift by the largest of what they see now.
  template <bool kFirst>
  __device__ __forceinline__ void SetShifts(const float (&scores)[C::kKeys / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = LargestExponent(scores, r);
      if (kFirst || shift[r] == -INFINITY) shift[r] = most;
    }
  }

  // Capped and masked scores to weights, in place.
  template <bool kMask>
  __device__ __forceinline__ void Weigh(float (&scores)[C::kKeys / 2]) const {
    const float factor = Factor();
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) by[r] = kMask && shift[r] == -INFINITY ? 0 : shift[r];
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      // Spelt out, so that every copy of this gives the same bits.
      scores[i] = ptx::Ex2(__fmaf_rn(scores[i], factor, -by[i / 2 % 2]));
    }
  }

  __device__ __forceinline__ void SumWeights(const float (&weights)[C::kKeys / 2],
                                             float (&total)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = weights[2 * r];
      float odd = weights[2 * r + 1];
#pragma unroll
      for (int i = 4; i < C::kKeys / 2; i += 4) {
        even += weights[i + 2 * r];
        odd += weights[i + 2 * r + 1];
      }
      total[r] = even + odd;
    }
  }

  __device__ __forceinline__ void PackWeights(const float (&from)[C::kKeys / 2],
                                              uint32_t (&to)[C::kKeys / 4]) const {
#pragma unroll
    for (int i = 0; i < C::kKeys / 4; ++i) {
      to[i] = PackPair<C::kType>(from[2 * i], from[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void StoreOut(const float (&out)[C::kDim / 2]) const;

  // A sum that says that the shift lies too far below what came now; NaN is one.
  static __device__ __forceinline__ bool IsTooLarge(float total) {
    constexpr float kLimit = C::kType == HalfType::kBF16 ? 0x1p64f : 0x1p14f;
    return !(total <= kLimit);
  }

  __device__ __forceinline__ void ReleaseValues() {
    Release(&shared.barriers.value_empty[value.slot]);
    value.Advance();
  }
  __device__ __forceinline__ void ReleaseKeys(bool last_of_work) const {
    Release(&shared.barriers.key_empty[key.slot]);
    if (last_of_work) Release(&shared.barriers.query_empty[query.slot][consumer]);
  }

  // After V of the pending tile was added.
  template <bool kFirst>
  __device__ __forceinline__ void EndPending(const float (&out)[C::kDim / 2]) {
    ReleaseValues();
    if constexpr (kFirst) StoreOut(out);
  }

  // One step, over key tile `tile`. kFirst: of new work; what is pending is the end of the work
  // before, whose results are stored. Returns whether a row's weights became too large: then the
  // keys are still held, and Reweigh must follow.
  template <bool kFirst, bool kMask>
  __device__ __forceinline__ bool Step(float (&out)[C::kDim / 2], float (&scores)[C::kKeys / 2],
                                       uint32_t (&weights)[C::kKeys / 4], int32_t tile,
                                       bool last_of_work) {
    // The only slot for queries has just been given back: they are not there yet.
    constexpr bool kValuesFirst = kFirst && C::kQueries == 1;
    const bool has_pending = kFirst ? pending : true;
    if (has_pending) ClearForeignValues();
    if constexpr (!kValuesFirst) {
      if constexpr (kFirst) WaitForQueries();
      ptx::MbarrierWait(&shared.barriers.key_full[key.slot], key.parity);
    }
    WaitForTurn();
    ptx::PinRegisters(out);
    ptx::PinRegisters(scores);
    ptx::PinRegisters(weights);
    ptx::WgmmaFence();
    if constexpr (!kValuesFirst) {
      StartScores(scores);
      ptx::WgmmaCommit();
    }
    if (has_pending) {
      WaitForValues();
      StartValues(out, weights);
    }
    ptx::WgmmaCommit();
    PassTurn();
    if constexpr (kValuesFirst) {
      WaitForQueries();
      ptx::MbarrierWait(&shared.barriers.key_full[key.slot], key.parity);
      StartScores(scores);
      ptx::WgmmaCommit();
    }
    ptx::WgmmaWait<1>();
    if constexpr (kValuesFirst) {
      ptx::PinRegisters(out);
      if (has_pending) EndPending<kFirst>(out);
      ptx::WgmmaWait<0>();
    }
    ptx::PinRegisters(scores);
    CapAndMask<kMask>(scores, tile);
    if constexpr (kMask) SetShifts<kFirst>(scores);
    Weigh<kMask>(scores);
    float total[2];
    SumWeights(scores, total);
    bool too_large = false;
    if constexpr (kFirst) {
      // The assembler would compute the weights after the wait, which nothing tells to come later.
      // This does: it needs them, and is never taken, as no sum of exponentials is negative.
      if (total[0] + total[1] < 0) asm volatile("nanosleep.u32 1;" ::: "memory");
    } else {
      too_large = ptx::NamedBarrierAny(kOwnBarrier + consumer, 128,
                                       IsTooLarge(total[0]) || IsTooLarge(total[1]));
    }
    if (!too_large) ReleaseKeys(last_of_work);
    ptx::WgmmaWait<0>();
    if constexpr (!kValuesFirst) {
      ptx::PinRegisters(out);
      if (has_pending) EndPending<kFirst>(out);
    }
    ptx::PinRegisters(weights);
    if constexpr (kFirst && C::kSkipsMax > 0) {
      for (; skipped > 0; --skipped) {
        WaitForValues();
        ReleaseValues();
      }
    }
    pending = true;
    first_of_work = kFirst;
    if (too_large) return true;
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = kFirst ? total[r] : sum[r] + total[r];
    PackWeights(scores, weights);
    return false;
  }

  // The softmax of the latest step once more, after it found weights too large, with the largest
  // exponent for the shift of the rows that had them; the others get what they had, bit by bit.
  __device__ __forceinline__ void Reweigh(float (&out)[C::kDim / 2], float (&scores)[C::kKeys / 2],
                                          uint32_t (&weights)[C::kKeys / 4], int32_t tile,
                                          bool last_of_work) {
    float total[2];
    SumWeights(scores, total);
    bool grown[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t lanes = __ballot_sync(0xFFFFFFFF, IsTooLarge(total[r]));
      grown[r] = (lanes >> (lane & ~3) & 0xF) != 0;
    }
    ptx::PinRegisters(scores);
    ptx::WgmmaFence();
    StartScores(scores);
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(scores);
    ReleaseKeys(last_of_work);
    CapAndMask<true>(scores, tile);
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = LargestExponent(scores, r);
      rescale[r] = grown[r] ? ptx::Ex2(shift[r] - most) : 1;
      shift[r] = grown[r] ? most : shift[r];
    }
    Weigh<true>(scores);
    SumWeights(scores, total);
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) out[i] *= rescale[i / 2 % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = sum[r] * rescale[r] + total[r];
    PackWeights(scores, weights);
  }

  // Passes by the next tile, of which this consumer's rows see nothing; before the first step of
  // new work. Slots are given back only once they are full: before, that would count as giving
  // back what they held the time before.
  __device__ __forceinline__ void Skip() {
    ptx::MbarrierWait(&shared.barriers.key_full[key.slot], key.parity);
    Release(&shared.barriers.key_empty[key.slot]);
    key.Advance();
    ++skipped;
    WaitForTurn();
    PassTurn();
  }

  __device__ __forceinline__ void AdvanceKeys(bool last_of_work) {
    key.Advance();
    if (last_of_work) query.Advance();
  }

  __device__ __forceinline__ void Run();
};

// Divides by the sums and writes the rows. Four lanes hold a row's columns in pairs; they trade
// them so that each has 8 in sequence and stores 16 bytes.
template <typename C>
__device__ __forceinline__ void Sm90Consumer<C>::StoreOut(const float (&out)[C::kDim / 2]) const {
  const int quad = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = sum[r];
    total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
    total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
    const float inverse = 1 / total;
#pragma unroll
    for (int g = 0; g < C::kDim / 8; g += 4) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = &out[(g + i) * 4 + 2 * r];
        a[i] = PackPair<C::kType>(from[0] * inverse, from[1] * inverse);
      }
      const bool odd = (quad & 1) != 0;
      const uint32_t low = __shfl_xor_sync(0xFFFFFFFF, odd ? a[0] : a[1], 1);
      const uint32_t high = __shfl_xor_sync(0xFFFFFFFF, odd ? a[2] : a[3], 1);
      // Groups g + (quad & 1) and g + 2 + (quad & 1), the pairs of lanes quad & 2 and the next.
      const uint32_t u[2] = {odd ? low : a[0], odd ? a[1] : low};
      const uint32_t v[2] = {odd ? high : a[2], odd ? a[3] : high};
      const bool upper = (quad & 2) != 0;
      const uint32_t x = __shfl_xor_sync(0xFFFFFFFF, upper ? u[0] : v[0], 2);
      const uint32_t y = __shfl_xor_sync(0xFFFFFFFF, upper ? u[1] : v[1], 2);
      const uint4 piece = upper ? uint4{x, y, v[0], v[1]} : uint4{u[0], u[1], x, y};
      if (out_row[r] != nullptr) {
        *reinterpret_cast<uint4*>(out_row[r] + (g + quad) * 8) = piece;
      }
    }
  }
}

template <typename C>
__device__ __forceinline__ void Sm90Consumer<C>::Run() {
  float out[C::kDim / 2] = {};
  float scores[C::kKeys / 2] = {};
  uint32_t weights[C::kKeys / 4] = {};
  if (consumer == C::kConsumers - 1) PassTurn();
  for (;;) {
    ptx::MbarrierWait(&shared.barriers.item_full[place.slot], place.parity);
    const Sm90Item item = shared.items[place.slot];
    __syncwarp();
    Release(&shared.barriers.item_empty[place.slot]);
    place.Advance();
    const PrefillTile& tile = item.tile;
    if (tile.num_tokens == 0) break;

    int32_t token[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t at = consumer * 64 + row + r * 8;
      token[r] = at / tile.heads;
      position[r] = tile.first_position + min(token[r], tile.num_tokens - 1);
      first_key[r] = p.window > 0 ? position[r] - p.window + 1 : 0;
    }
    // Tiles in (some) between need no mask for any of the 64 rows, all of which have seen a key.
    const int32_t first_token = min(consumer * 64 / tile.heads, tile.num_tokens - 1);
    const int32_t last_token = min((consumer * 64 + 63) / tile.heads, tile.num_tokens - 1);
    const int32_t last_full = (tile.first_position + first_token) / C::kKeys - 1;
    const int32_t first_seen = tile.first_position + last_token - p.window + 1;
    const int32_t first_full =
        p.window > 0 && first_seen > 0 ? (first_seen + C::kKeys - 1) / C::kKeys : 0;

    int32_t j = item.last_tile;
    const int32_t last_seen = tile.first_position + last_token;
    if constexpr (C::kSkipsMax > 0) {
      for (; j * C::kKeys > last_seen; --j) Skip();
    }
    Step<true, true>(out, scores, weights, j, j == item.first_tile);
    AdvanceKeys(j == item.first_tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t at = consumer * 64 + row + r * 8;
      out_row[r] = token[r] < tile.num_tokens
                       ? static_cast<uint16_t*>(p.out) + (tile.q_row + token[r]) * p.out_stride +
                             int64_t{tile.head + at - token[r] * tile.heads} * C::kDim
                       : nullptr;
    }
    const auto set_value_bounds = [&] {
      value_begin = max(0, item.key_begin - j * C::kKeys);
      value_end = min(C::kKeys, tile.kv_length - j * C::kKeys);
    };
    set_value_bounds();
    for (--j; j >= item.first_tile; --j) {
      const bool last = j == item.first_tile;
      const bool too_large = j > last_full || j < first_full
                                 ? Step<false, true>(out, scores, weights, j, last)
                                 : Step<false, false>(out, scores, weights, j, last);
      if (too_large) Reweigh(out, scores, weights, j, last);
      AdvanceKeys(last);
      set_value_bounds();
    }
  }
  if (!pending) return;
  ClearForeignValues();
  WaitForValues();
  ptx::PinRegisters(out);
  ptx::PinRegisters(weights);
  ptx::WgmmaFence();
  StartValues(out, weights);
  ptx::WgmmaCommit();
  ptx::WgmmaWait<0>();
  ptx::PinRegisters(out);
  StoreOut(out);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_CONSUMER_CUH_
