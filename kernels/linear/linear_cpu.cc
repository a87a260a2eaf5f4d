// Two forms, same bits:
//  - few rows (up to 6): accumulators of R rows times P panels (R * P <= 6) stay in registers over
//    all of k, and weights are converted as they stream in. Bound by memory.
//  - many rows: weights of a tile are converted once to float32, in slices of 256 along k (128 KiB,
//    second-level cache), and products of 6 rows x 16 outputs run over them with 12 accumulators:
//    enough chains for two fused units of latency 4. Accumulators rest in scratch between slices.
#include "kernels/linear/linear.h"
#include "kernels/vector_math/vector_math-inl.h"

namespace baton::kernels {
namespace {

constexpr int64_t kDepth = 256;
constexpr int64_t kRows = 6;
// Slice along k for few rows: 6 rows of it fit the first-level cache beside the weights.
constexpr int64_t kFewRowsDepth = 1024;

struct Pair {
  VecF32 low;   // Outputs 0-7 of a panel.
  VecF32 high;  // Outputs 8-15.
};

template <WeightType kType>
HWY_INLINE Pair LoadWeights(const void* base, int64_t index) {
  const F32 d;
  if constexpr (kType == WeightType::kF32) {
    const float* p = static_cast<const float*>(base) + index;
    return {hn::Load(d, p), hn::Load(d, p + kLanes)};
  } else if constexpr (kType == WeightType::kBF16) {
    // A bfloat16 is the upper half of a float32.
    const hn::FixedTag<uint16_t, 16> d16;
    const U32 d32;
    const auto both = hn::BitCast(d32, hn::Load(d16, static_cast<const uint16_t*>(base) + index));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(d32, 0xFFFF0000u)))};
  } else {
    const hn::FixedTag<hwy::float16_t, 8> d16;
    const auto* p = static_cast<const hwy::float16_t*>(base) + index;
    return {hn::PromoteTo(d, hn::Load(d16, p)), hn::PromoteTo(d, hn::Load(d16, p + kLanes))};
  }
}

// c[r][16 * panel ...] (+)= x rows r < kR times panels p < kP, over `depth` elements.
// `panel_stride` and offsets are in elements of the stored type. c is [rows][c_stride], already
// initialised.
template <int kR, int kP, WeightType kType>
HWY_INLINE void MultiplyTile(const float* x, int64_t x_stride, const void* weights,
                             int64_t panel_stride, int64_t depth, float* c, int64_t c_stride) {
  const F32 d;
  VecF32 low[kR][kP];
  VecF32 high[kR][kP];
  for (int r = 0; r < kR; ++r) {
    for (int q = 0; q < kP; ++q) {
      low[r][q] = hn::Load(d, c + r * c_stride + q * kPanelRows);
      high[r][q] = hn::Load(d, c + r * c_stride + q * kPanelRows + 8);
    }
  }
  HWY_UNROLL(4)
  for (int64_t i = 0; i < depth; ++i) {
    HWY_UNROLL(6)
    for (int q = 0; q < kP; ++q) {
      const Pair w = LoadWeights<kType>(weights, q * panel_stride + i * kPanelRows);
      HWY_UNROLL(6)
      for (int r = 0; r < kR; ++r) {
        const VecF32 broadcast = hn::Set(d, x[r * x_stride + i]);
        low[r][q] = hn::MulAdd(broadcast, w.low, low[r][q]);
        high[r][q] = hn::MulAdd(broadcast, w.high, high[r][q]);
      }
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int q = 0; q < kP; ++q) {
      hn::Store(low[r][q], d, c + r * c_stride + q * kPanelRows);
      hn::Store(high[r][q], d, c + r * c_stride + q * kPanelRows + 8);
    }
  }
}

// Runs `num_panels` panels in groups of kP, for kR rows.
template <int kR, int kP, WeightType kType>
HWY_INLINE void MultiplyPanels(const float* x, int64_t x_stride, const void* weights,
                               int64_t panel_stride, int64_t num_panels, int64_t depth, float* c,
                               int64_t c_stride) {
  const auto* base = static_cast<const char*>(weights);
  const int64_t panel_bytes = panel_stride * static_cast<int64_t>(WeightTypeBytes(kType));
  int64_t q = 0;
  for (; q + kP <= num_panels; q += kP) {
    MultiplyTile<kR, kP, kType>(x, x_stride, base + q * panel_bytes, panel_stride, depth,
                                c + q * kPanelRows, c_stride);
  }
  for (; q < num_panels; ++q) {
    MultiplyTile<kR, 1, kType>(x, x_stride, base + q * panel_bytes, panel_stride, depth,
                               c + q * kPanelRows, c_stride);
  }
}

template <WeightType kType>
void MultiplyFewRows(const float* x, int64_t rows, int64_t k, const void* weights,
                     int64_t num_panels, int64_t panel_stride, int64_t depth, float* c,
                     int64_t c_stride) {
  switch (rows) {
    case 1:
      return MultiplyPanels<1, 6, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
    case 2:
      return MultiplyPanels<2, 3, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
    case 3:
      return MultiplyPanels<3, 2, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
    case 4:
      return MultiplyPanels<4, 1, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
    case 5:
      return MultiplyPanels<5, 1, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
    default:
      return MultiplyPanels<6, 1, kType>(x, k, weights, panel_stride, num_panels, depth, c,
                                         c_stride);
  }
}

// Elements [0, depth) of one panel, to float32.
template <WeightType kType>
void ConvertPanel(const void* weights, int64_t depth, float* out) {
  const F32 d;
  for (int64_t i = 0; i < depth; ++i) {
    const Pair w = LoadWeights<kType>(weights, i * kPanelRows);
    hn::Store(w.low, d, out + i * kPanelRows);
    hn::Store(w.high, d, out + i * kPanelRows + kLanes);
  }
}

// Columns [k0, k0 + depth) of x [rows, k], to rows of kDepth. Rows of x may be a power of two
// apart, and six of them would then compete for the same sets of the first-level cache.
void CopySlice(const float* x, int64_t rows, int64_t k, int64_t k0, int64_t depth, float* out) {
  const F32 d;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = x + r * k + k0;
    float* to = out + r * kDepth;
    int64_t i = 0;
    for (; i + 8 <= depth; i += 8) hn::Store(hn::LoadU(d, from + i), d, to + i);
    for (; i < depth; ++i) to[i] = from[i];
  }
}

struct Scratch {
  float* c;        // [rows][c_stride]
  float* weights;  // [panels][kDepth][16]
  float* x;        // [rows][kDepth]
};
constexpr int64_t kStride = kLinearTilePanelsMax * kPanelRows;

// c += x[rows, k] times `num_panels` panels from `weights` on.
template <WeightType kType>
void Multiply(const LinearParams& p, const float* x, int64_t rows, const void* weights,
              int64_t num_panels, const Scratch& s) {
  const int64_t panel_stride = p.k * kPanelRows;
  const auto* base = static_cast<const char*>(weights);
  const auto element_bytes = static_cast<int64_t>(WeightTypeBytes(kType));
  if (rows <= kRows) {
    for (int64_t k0 = 0; k0 < p.k; k0 += kFewRowsDepth) {
      const int64_t depth = p.k - k0 < kFewRowsDepth ? p.k - k0 : kFewRowsDepth;
      MultiplyFewRows<kType>(x + k0, rows, p.k, base + k0 * kPanelRows * element_bytes, num_panels,
                             panel_stride, depth, s.c, kStride);
    }
    return;
  }
  for (int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
    const int64_t depth = p.k - k0 < kDepth ? p.k - k0 : kDepth;
    for (int64_t q = 0; q < num_panels; ++q) {
      ConvertPanel<kType>(base + (q * panel_stride + k0 * kPanelRows) * element_bytes, depth,
                          s.weights + q * kDepth * kPanelRows);
    }
    CopySlice(x, rows, p.k, k0, depth, s.x);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t n = rows - r < kRows ? rows - r : kRows;
      MultiplyFewRows<WeightType::kF32>(s.x + r * kDepth, n, kDepth, s.weights, num_panels,
                                        kDepth * kPanelRows, depth, s.c + r * kStride, kStride);
    }
  }
}

void Initialise(const LinearParams& p, int64_t rows, int64_t panel_begin, int64_t num_panels,
                float* c, int64_t c_stride) {
  for (int64_t column = 0; column < num_panels * kPanelRows; ++column) {
    const float start = p.bias == nullptr ? 0.0f : p.bias[panel_begin * kPanelRows + column];
    for (int64_t r = 0; r < rows; ++r) c[r * c_stride + column] = start;
  }
}

void StoreTile(const LinearParams& p, int64_t row_begin, int64_t rows, int64_t panel_begin,
               int64_t num_panels, const float* c, int64_t c_stride) {
  const F32 d;
  const int64_t step = p.gated ? 2 : 1;
  for (int64_t r = 0; r < rows; ++r) {
    float* y = p.y + (row_begin + r) * p.n;
    for (int64_t q = 0; q < num_panels; q += step) {
      const float* from = c + r * c_stride + q * kPanelRows;
      for (int64_t half = 0; half < 2; ++half, from += kLanes) {
        const int64_t column = (panel_begin + q) / step * kPanelRows + half * 8;
        if (column >= p.n) break;
        VecF32 v = hn::Load(d, from);
        if (p.gated) v = hn::Mul(SiluF32(d, v), hn::Load(d, from + kPanelRows));
        const int64_t n = p.n - column;
        if (n >= 8) {
          hn::StoreU(v, d, y + column);
        } else {
          StoreFirst(d, v, y + column, static_cast<size_t>(n));
        }
      }
    }
  }
}

}  // namespace

void LinearCpu(const LinearParams& p, int64_t row_begin, int64_t row_end, int64_t panel_begin,
               int64_t panel_end, float* scratch) {
  const int64_t rows = row_end - row_begin;
  const int64_t num_panels = panel_end - panel_begin;
  if (rows <= 0 || num_panels <= 0) return;
  const Scratch s = {.c = scratch,
                     .weights = scratch + kLinearTileRowsMax * kStride,
                     .x = scratch + (kLinearTileRowsMax + kDepth) * kStride};
  const float* x = p.x + row_begin * p.k;
  const void* weights =
      static_cast<const char*>(p.packed) +
      panel_begin * p.k * kPanelRows * static_cast<int64_t>(WeightTypeBytes(p.type));
  Initialise(p, rows, panel_begin, num_panels, s.c, kStride);
  switch (p.type) {
    case WeightType::kF32:
      Multiply<WeightType::kF32>(p, x, rows, weights, num_panels, s);
      break;
    case WeightType::kF16:
      Multiply<WeightType::kF16>(p, x, rows, weights, num_panels, s);
      break;
    case WeightType::kBF16:
      Multiply<WeightType::kBF16>(p, x, rows, weights, num_panels, s);
      break;
  }
  StoreTile(p, row_begin, rows, panel_begin, num_panels, s.c, kStride);
}

}  // namespace baton::kernels
