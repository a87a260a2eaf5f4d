#include "kernels/sampling/sampling_rows.h"
#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

constexpr float kInfinity = __builtin_inff();

struct PhiloxVectors {
  hn::Vec<U32> word[4];
};

struct WideProduct {
  hn::Vec<U32> high;
  hn::Vec<U32> low;
};

HWY_INLINE WideProduct MultiplyWide(hn::Vec<U32> a, uint32_t multiplier) {
  const U32 d;
  const hn::FixedTag<uint64_t, 4> d64;
  const auto m = hn::Set(d, multiplier);
  const auto even = hn::MulEven(a, m);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), m);
  return {hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even))};
}

// Eight blocks at once, of counters first_counter + lane.
HWY_INLINE PhiloxVectors PhiloxBlocks(uint32_t first_counter, const NoiseKey& key) {
  const U32 d;
  PhiloxVectors c = {{hn::Iota(d, first_counter), hn::Set(d, key.position),
                      hn::Set(d, key.sample_index), hn::Zero(d)}};
  auto key0 = static_cast<uint32_t>(key.seed);
  auto key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const WideProduct p0 = MultiplyWide(c.word[0], kPhiloxMultiplier0);
    const WideProduct p1 = MultiplyWide(c.word[2], kPhiloxMultiplier1);
    c = {{hn::Xor(hn::Xor(p1.high, c.word[1]), hn::Set(d, key0)), p1.low,
          hn::Xor(hn::Xor(p0.high, c.word[3]), hn::Set(d, key1)), p0.low}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return c;
}

HWY_INLINE VecF32 GumbelFromBits(hn::Vec<U32> bits) {
  const F32 d;
  const I32 di;
  const VecF32 integer = hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<9>(bits)));
  const VecF32 uniform =
      hn::Mul(hn::Add(integer, hn::Set(d, 0.5f)), hn::Set(d, 1.1920928955078125e-7f));
  const VecF32 exponential = hn::Sub(hn::Zero(d), LogF32(d, uniform));
  return hn::Sub(hn::Zero(d), LogF32(d, exponential));
}

}  // namespace

RowMaximum FindRowMaximum(const float* logits, int32_t vocab) {
  const F32 d;
  const auto n = static_cast<size_t>(vocab);
  VecF32 maximum = hn::Set(d, -kInfinity);
  const VecF32 zero = hn::Zero(d);
  VecF32 zeros = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecF32 v = hn::LoadU(d, logits + i);
    maximum = hn::Max(maximum, v);
    zeros = hn::MulAdd(v, zero, zeros);  // 0 * v: NaN if v is not finite.
  }
  if (i < n) {
    const VecF32 v = LoadFirst(d, logits + i, n - i);
    const VecF32 padded = hn::IfThenElse(hn::FirstN(d, n - i), v, hn::Set(d, -kInfinity));
    maximum = hn::Max(maximum, padded);
    zeros = hn::MulAdd(v, zero, zeros);
  }
  RowMaximum result;
  result.finite = SumOfLanes(d, zeros) == 0.0f;
  if (!result.finite) return result;
  result.value = MaxOfLanes(d, maximum);
  while (logits[result.token] != result.value) ++result.token;
  return result;
}

void ScaleRow(const float* logits, int32_t vocab, float maximum, float inverse_temperature,
              int32_t padded, float* z) {
  const F32 d;
  const auto n = static_cast<size_t>(vocab);
  const VecF32 m = hn::Set(d, maximum);
  const VecF32 factor = hn::Set(d, inverse_temperature);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(d, logits + i), m), factor), d, z + i);
  }
  if (i < n) {
    const VecF32 v = hn::Mul(hn::Sub(LoadFirst(d, logits + i, n - i), m), factor);
    hn::StoreU(hn::IfThenElse(hn::FirstN(d, n - i), v, hn::Set(d, -kInfinity)), d, z + i);
    i += kLanes;
  }
  for (; i < static_cast<size_t>(padded); i += kLanes) {
    hn::StoreU(hn::Set(d, -kInfinity), d, z + i);
  }
}

double SumOfExponentials(const float* logits, int32_t vocab, float maximum) {
  const F32 d;
  const hn::FixedTag<double, 4> d64;
  const hn::FixedTag<float, 4> d_half;
  const auto n = static_cast<size_t>(vocab);
  const VecF32 m = hn::Set(d, maximum);
  auto low = hn::Zero(d64);
  auto high = hn::Zero(d64);
  const auto add = [&](VecF32 e) HWY_ATTR {
    low = hn::Add(low, hn::PromoteTo(d64, hn::LowerHalf(d_half, e)));
    high = hn::Add(high, hn::PromoteTo(d64, hn::UpperHalf(d_half, e)));
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add(ExpF32(d, hn::Sub(hn::LoadU(d, logits + i), m)));
  if (i < n) {
    const VecF32 e = ExpF32(d, hn::Sub(LoadFirst(d, logits + i, n - i), m));
    add(hn::IfThenElseZero(hn::FirstN(d, n - i), e));
  }
  HWY_ALIGN double lanes[4];
  hn::Store(hn::Add(low, high), d64, lanes);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

int32_t GumbelArgmax(const float* z, int32_t padded, const NoiseKey& key) {
  const F32 d;
  const I32 di;
  VecF32 best = hn::Set(d, -kInfinity);
  auto best_token = hn::Zero(di);
  float best_of_all = -kInfinity;
  for (int32_t first = 0; first < padded; first += 32) {
    // Lane l of v[w] holds token first + 4 * l + w: the tokens of one block are in one lane.
    VecF32 v[4];
    hn::LoadInterleaved4(d, z + first, v[0], v[1], v[2], v[3]);
    const VecF32 largest = hn::Max(hn::Max(v[0], v[1]), hn::Max(v[2], v[3]));
    // No noise could lift any of these tokens over the best so far.
    if (MaxOfLanes(d, largest) + kGumbelMax < best_of_all || MaxOfLanes(d, largest) == -kInfinity) {
      continue;
    }
    const PhiloxVectors noise = PhiloxBlocks(static_cast<uint32_t>(first) / 4, key);
    for (int w = 0; w < 4; ++w) {
      const VecF32 score = hn::Add(v[w], GumbelFromBits(noise.word[w]));
      const auto better = hn::Gt(score, best);
      const auto token = hn::Add(hn::ShiftLeft<2>(hn::Iota(di, 0)), hn::Set(di, first + w));
      best = hn::IfThenElse(better, score, best);
      best_token = hn::IfThenElse(hn::RebindMask(di, better), token, best_token);
    }
    best_of_all = MaxOfLanes(d, best);
  }
  HWY_ALIGN float scores[kLanes];
  HWY_ALIGN int32_t tokens[kLanes];
  hn::Store(best, d, scores);
  hn::Store(best_token, di, tokens);
  size_t winner = 0;
  for (size_t lane = 1; lane < kLanes; ++lane) {
    if (scores[lane] > scores[winner] ||
        (scores[lane] == scores[winner] && tokens[lane] < tokens[winner])) {
      winner = lane;
    }
  }
  return tokens[winner];
}

}  // namespace baton::kernels
