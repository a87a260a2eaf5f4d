// Rows of a work item are its (token, head) pairs, token-major. For each key tile: the tile is
// transposed once to [head_dim][16], scores of up to 6 rows x 16 keys take 12 accumulators, the
// softmax state of each row is updated, and values are added in blocks of 6 rows x 16 dimensions.
#include "kernels/attention/attention.h"
#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

constexpr int kTile = kAttentionTileTokens;
constexpr int kRowsAtOnce = 6;
// Less than any score: exp of the distance to it is exactly 0. Not infinity, so that a row whose
// scores are all -infinity becomes NaN, and is seen, instead of a quiet average.
constexpr float kMasked = -3.4028235e38f;

struct Scratch {
  float* keys;    // [head_dim][16]
  float* out;     // [rows][padded_dim], not yet divided by the sum.
  float* scores;  // [rows][16]
  float* maximum;
  float* sum;
  float* rescale;
  int64_t padded_dim;
};

// Eight keys by eight dimensions, from rows `stride` apart to columns: to[dimension * 16 + key].
HWY_INLINE void Transpose8x8(const float* from, int64_t stride, float* to) {
  const F32 d;
  const hn::FixedTag<double, 4> d64;
  VecF32 r[8];
  for (int i = 0; i < 8; ++i) r[i] = hn::LoadU(d, from + i * stride);
  for (int half = 0; half < 8; half += 4) {
    const auto pair = [&](int a, int b, bool upper) HWY_ATTR {
      return hn::BitCast(d64, upper ? hn::InterleaveUpper(d, r[half + a], r[half + b])
                                    : hn::InterleaveLower(d, r[half + a], r[half + b]));
    };
    const auto low01 = pair(0, 1, false);
    const auto high01 = pair(0, 1, true);
    const auto low23 = pair(2, 3, false);
    const auto high23 = pair(2, 3, true);
    r[half + 0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    r[half + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    r[half + 2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    r[half + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  }
  for (int i = 0; i < 4; ++i) {
    hn::Store(hn::ConcatLowerLower(d, r[4 + i], r[i]), d, to + i * kTile);
    hn::Store(hn::ConcatUpperUpper(d, r[4 + i], r[i]), d, to + (4 + i) * kTile);
  }
}

// All 16 keys of the tile are read; those beyond the context only reach lanes that are masked.
void TransposeKeys(const float* keys, int64_t head_dim, float* to) {
  int64_t i = 0;
  for (; i + 8 <= head_dim; i += 8) {
    Transpose8x8(keys + i, head_dim, to + i * kTile);
    Transpose8x8(keys + 8 * head_dim + i, head_dim, to + i * kTile + 8);
  }
  for (; i < head_dim; ++i) {
    for (int j = 0; j < kTile; ++j) to[i * kTile + j] = keys[j * head_dim + i];
  }
}

template <int kR>
HWY_INLINE void ScoreRows(const float* const* q, const float* keys, int64_t head_dim, float scale,
                          float* scores) {
  const F32 d;
  VecF32 low[kR];
  VecF32 high[kR];
  for (int r = 0; r < kR; ++r) low[r] = high[r] = hn::Zero(d);
  for (int64_t i = 0; i < head_dim; ++i) {
    const VecF32 k_low = hn::Load(d, keys + i * kTile);
    const VecF32 k_high = hn::Load(d, keys + i * kTile + 8);
    HWY_UNROLL(6)
    for (int r = 0; r < kR; ++r) {
      const VecF32 broadcast = hn::Set(d, q[r][i]);
      low[r] = hn::MulAdd(broadcast, k_low, low[r]);
      high[r] = hn::MulAdd(broadcast, k_high, high[r]);
    }
  }
  const VecF32 s = hn::Set(d, scale);
  for (int r = 0; r < kR; ++r) {
    hn::Store(hn::Mul(low[r], s), d, scores + r * kTile);
    hn::Store(hn::Mul(high[r], s), d, scores + r * kTile + 8);
  }
}

// Turns the first `count` scores of a row into weights, the others into zeros.
HWY_INLINE void UpdateSoftmax(float* scores, int count, float* maximum, float* sum,
                              float* rescale) {
  const F32 d;
  const VecF32 masked = hn::Set(d, kMasked);
  VecF32 low = hn::Load(d, scores);
  VecF32 high = hn::Load(d, scores + 8);
  if (count < kTile) {
    const auto n = static_cast<size_t>(count);
    low = hn::IfThenElse(hn::FirstN(d, n < 8 ? n : 8), low, masked);
    high = hn::IfThenElse(hn::FirstN(d, n < 8 ? 0 : n - 8), high, masked);
  }
  const float tile_maximum = MaxOfLanes(d, hn::Max(low, high));
  const float updated = *maximum > tile_maximum ? *maximum : tile_maximum;
  const VecF32 m = hn::Set(d, updated);
  low = ExpF32(d, hn::Sub(low, m));
  high = ExpF32(d, hn::Sub(high, m));
  *rescale = hn::GetLane(ExpF32(d, hn::Set(d, *maximum - updated)));
  *maximum = updated;
  if (count < kTile) {
    const auto n = static_cast<size_t>(count);
    low = hn::IfThenElseZero(hn::FirstN(d, n < 8 ? n : 8), low);
    high = hn::IfThenElseZero(hn::FirstN(d, n < 8 ? 0 : n - 8), high);
  }
  hn::Store(low, d, scores);
  hn::Store(high, d, scores + 8);
  *sum = *sum * *rescale + SumOfLanes(d, hn::Add(low, high));
}

// out[r] = out[r] * rescale[r] + sum over j < count of weights[r][j] * values[j], for kR rows and
// dimensions [i, i + 16), of which the last may be beyond head_dim.
template <int kR, bool kWhole>
HWY_INLINE void AddValuesBlock(const float* values, int64_t head_dim, int64_t i, int count,
                               const float* weights, const float* rescale, float* out,
                               int64_t out_stride) {
  const F32 d;
  VecF32 low[kR];
  VecF32 high[kR];
  for (int r = 0; r < kR; ++r) {
    const VecF32 factor = hn::Set(d, rescale[r]);
    low[r] = hn::Mul(hn::Load(d, out + r * out_stride + i), factor);
    high[r] = hn::Mul(hn::Load(d, out + r * out_stride + i + 8), factor);
  }
  const auto rest = static_cast<size_t>(head_dim - i);
  const auto low_mask = hn::FirstN(d, rest < 8 ? rest : 8);
  const auto high_mask = hn::FirstN(d, rest < 8 ? 0 : rest - 8);
  for (int j = 0; j < count; ++j) {
    const float* v = values + j * head_dim + i;
    const VecF32 v_low = kWhole ? hn::LoadU(d, v) : hn::MaskedLoad(low_mask, d, v);
    const VecF32 v_high = kWhole ? hn::LoadU(d, v + 8) : hn::MaskedLoad(high_mask, d, v + 8);
    HWY_UNROLL(6)
    for (int r = 0; r < kR; ++r) {
      const VecF32 weight = hn::Set(d, weights[r * kTile + j]);
      low[r] = hn::MulAdd(weight, v_low, low[r]);
      high[r] = hn::MulAdd(weight, v_high, high[r]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    hn::Store(low[r], d, out + r * out_stride + i);
    hn::Store(high[r], d, out + r * out_stride + i + 8);
  }
}

template <int kR>
void AddValues(const Scratch& s, const float* values, int64_t head_dim, int row, int count) {
  const float* weights = s.scores + row * kTile;
  const float* rescale = s.rescale + row;
  float* out = s.out + row * s.padded_dim;
  int64_t i = 0;
  for (; i + 16 <= head_dim; i += 16) {
    AddValuesBlock<kR, true>(values, head_dim, i, count, weights, rescale, out, s.padded_dim);
  }
  if (i < head_dim) {
    AddValuesBlock<kR, false>(values, head_dim, i, count, weights, rescale, out, s.padded_dim);
  }
}

void AddValuesOfRows(const Scratch& s, const float* values, int64_t head_dim, int row, int num_rows,
                     int count) {
  for (; num_rows >= 6; row += 6, num_rows -= 6) AddValues<6>(s, values, head_dim, row, count);
  for (; num_rows >= 3; row += 3, num_rows -= 3) AddValues<3>(s, values, head_dim, row, count);
  for (; num_rows >= 1; row += 1, num_rows -= 1) AddValues<1>(s, values, head_dim, row, count);
}

void ScoreAllRows(const AttentionParams& p, const AttentionWork& work, const Scratch& s,
                  int first_row, int num_rows) {
  const int64_t head_dim = p.kv.head_dim;
  const int group = p.num_heads / p.num_kv_heads;
  const auto query = [&](int row) {
    return p.q + ((work.token_begin + row / group) * static_cast<int64_t>(p.num_heads) +
                  work.kv_head * group + row % group) *
                     head_dim;
  };
  int row = first_row;
  const float* q[kRowsAtOnce];
  for (; row + kRowsAtOnce <= num_rows; row += kRowsAtOnce) {
    for (int r = 0; r < kRowsAtOnce; ++r) q[r] = query(row + r);
    ScoreRows<kRowsAtOnce>(q, s.keys, head_dim, p.scale, s.scores + row * kTile);
  }
  for (; row + 2 <= num_rows; row += 2) {
    q[0] = query(row);
    q[1] = query(row + 1);
    ScoreRows<2>(q, s.keys, head_dim, p.scale, s.scores + row * kTile);
  }
  if (row < num_rows) {
    q[0] = query(row);
    ScoreRows<1>(q, s.keys, head_dim, p.scale, s.scores + row * kTile);
  }
}

const float* KeysOfTile(const AttentionParams& p, const AttentionWork& work, int32_t tile) {
  return p.kv.Key(work.block_table[tile >> p.kv.block_tokens_log2], work.kv_head,
                  tile & ((1 << p.kv.block_tokens_log2) - 1));
}

// A tile is read with long strides, which hardware does not foresee.
HWY_INLINE void PrefetchTile(const AttentionParams& p, const float* keys) {
  constexpr int64_t kLineFloats = 16;
  const float* values = keys + p.kv.value_offset;
  for (int64_t i = 0; i < kTile * p.kv.head_dim; i += kLineFloats) {
    __builtin_prefetch(keys + i);
    __builtin_prefetch(values + i);
  }
}

// One key tile, starting at absolute position `tile`.
void AttendToTile(const AttentionParams& p, const AttentionWork& work, const Scratch& s,
                  int num_rows, int32_t tile) {
  const int64_t head_dim = p.kv.head_dim;
  const int group = p.num_heads / p.num_kv_heads;
  const float* keys = KeysOfTile(p, work, tile);
  const int32_t next = tile + kTile;
  if (next < work.first_position + work.num_tokens) PrefetchTile(p, KeysOfTile(p, work, next));
  // Rows of tokens before the tile have nothing to do with it.
  const int32_t skipped = tile - work.first_position;
  const int first_row = skipped > 0 ? skipped * group : 0;
  TransposeKeys(keys, head_dim, s.keys);
  ScoreAllRows(p, work, s, first_row, num_rows);
  const auto count_of = [&](int row) {
    const int32_t visible = work.first_position + row / group + 1 - tile;
    return visible < kTile ? visible : kTile;
  };
  for (int row = first_row; row < num_rows; ++row) {
    UpdateSoftmax(s.scores + row * kTile, count_of(row), s.maximum + row, s.sum + row,
                  s.rescale + row);
  }
  const float* values = keys + p.kv.value_offset;
  for (int row = first_row; row < num_rows;) {
    const int count = count_of(row);
    int end = row + 1;
    while (end < num_rows && count_of(end) == count) ++end;
    AddValuesOfRows(s, values, head_dim, row, end - row, count);
    row = end;
  }
}

void StoreRows(const AttentionParams& p, const AttentionWork& work, const Scratch& s,
               int num_rows) {
  const F32 d;
  const int64_t head_dim = p.kv.head_dim;
  const int group = p.num_heads / p.num_kv_heads;
  for (int row = 0; row < num_rows; ++row) {
    const VecF32 inverse = hn::Div(hn::Set(d, 1.0f), hn::Set(d, s.sum[row]));
    float* to = p.out + ((work.token_begin + row / group) * static_cast<int64_t>(p.num_heads) +
                         work.kv_head * group + row % group) *
                            head_dim;
    const float* from = s.out + row * s.padded_dim;
    for (int64_t i = 0; i < head_dim; i += 8) {
      const VecF32 v = hn::Mul(hn::Load(d, from + i), inverse);
      if (i + 8 <= head_dim) {
        hn::StoreU(v, d, to + i);
      } else {
        StoreFirst(d, v, to + i, static_cast<size_t>(head_dim - i));
      }
    }
  }
}

}  // namespace

void AttentionCpu(const AttentionParams& p, const AttentionWork& work, float* scratch) {
  const int num_rows = work.num_tokens * (p.num_heads / p.num_kv_heads);
  if (num_rows <= 0) return;
  const int64_t padded_rows = (num_rows + 15) / 16 * 16;
  Scratch s;
  s.padded_dim = (p.kv.head_dim + 15) / 16 * 16;
  s.keys = scratch;
  s.out = s.keys + s.padded_dim * kTile;
  s.scores = s.out + num_rows * s.padded_dim;
  s.maximum = s.scores + num_rows * kTile;
  s.sum = s.maximum + padded_rows;
  s.rescale = s.sum + padded_rows;
  for (int64_t i = 0; i < num_rows * s.padded_dim; ++i) s.out[i] = 0;
  for (int row = 0; row < num_rows; ++row) {
    s.maximum[row] = kMasked;
    s.sum[row] = 0;
  }
  const int32_t num_keys = work.first_position + work.num_tokens;
  for (int32_t tile = 0; tile < num_keys; tile += kTile) {
    AttendToTile(p, work, s, num_rows, tile);
  }
  StoreRows(p, work, s, num_rows);
}

}  // namespace baton::kernels
