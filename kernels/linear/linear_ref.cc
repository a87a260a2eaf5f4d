// Packing, and the plain form of the product.
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "kernels/linear/linear.h"
#include "kernels/vector_math/vector_math.h"

namespace baton::kernels {
namespace {

float LoadWeight(const void* base, WeightType type, int64_t index) {
  if (type == WeightType::kF32) return static_cast<const float*>(base)[index];
  const uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return type == WeightType::kF16 ? HalfToF32(bits) : Bf16ToF32(bits);
}

// acc = bias; acc = fma(x, w, acc) over k.
float Chain(const LinearParams& p, const float* x, int64_t panel, int64_t lane) {
  float acc = p.bias == nullptr ? 0.0f : p.bias[panel * kPanelRows + lane];
  for (int64_t i = 0; i < p.k; ++i) {
    const int64_t at = (panel * p.k + i) * kPanelRows + LaneOfRow(lane, p.type);
    acc = std::fma(x[i], LoadWeight(p.packed, p.type, at), acc);
  }
  return acc;
}

}  // namespace

void PackLinearRows(const void* rows, WeightType from, int64_t num_rows, int64_t k,
                    int64_t first_row, bool gated, int part, WeightType to, void* packed) {
  CHECK(from == to || to == WeightType::kF32);
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const int64_t first = PanelOfRow(row, gated, part) * kPanelRows * k + LaneOfRow(row, to);
    if (to == WeightType::kF32) {
      auto* out = static_cast<float*>(packed) + first;
      for (int64_t i = 0; i < k; ++i) out[i * kPanelRows] = LoadWeight(rows, from, r * k + i);
    } else {
      auto* out = static_cast<uint16_t*>(packed) + first;
      const uint16_t* in = static_cast<const uint16_t*>(rows) + r * k;
      for (int64_t i = 0; i < k; ++i) out[i * kPanelRows] = in[i];
    }
  }
}

void LinearRef(const LinearParams& p, int64_t row_begin, int64_t row_end, int64_t panel_begin,
               int64_t panel_end) {
  const int64_t panels_per_column = p.gated ? 2 : 1;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = p.x + row * p.k;
    for (int64_t panel = panel_begin; panel < panel_end; panel += panels_per_column) {
      for (int64_t lane = 0; lane < kPanelRows; ++lane) {
        const int64_t column = panel / panels_per_column * kPanelRows + lane;
        if (column >= p.n) break;
        float value = Chain(p, x, panel, lane);
        if (p.gated) value = SiluF32(value) * Chain(p, x, panel + 1, lane);
        p.y[row * p.n + column] = value;
      }
    }
  }
}

}  // namespace baton::kernels
