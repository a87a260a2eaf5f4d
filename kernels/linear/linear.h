// Matrix products with stored weights: y = x W^T + bias, and the gated form silu(x Wg^T) * (x
// Wu^T).
//
// Packed weights: W [n, k] is cut into panels of 16 rows; a panel lies as [k][16] in the stored
// type, so 16 neighbouring outputs take one contiguous stream. The last panel is padded with zero
// rows. In the gated form gate and up panels alternate: gate rows 0-15, up rows 0-15, gate rows
// 16-31, ...
//
// Every output element is one chain: acc = bias; for i in 0..k-1: acc = fma(x[i], w[i], acc). So
// its bits depend neither on the number of rows, nor on tiling, nor on threads, and equal the
// reference's. FLOPs: 2 * rows * n * k. Bytes: n * k * element size once per call, so a call with
// few rows is bound by memory and one with many by arithmetic.
//
// Thread rule: pure; calls for disjoint tiles of outputs may run at once. The processor must have
// AVX2, FMA and F16C for the *Cpu functions.
#ifndef BATON_KERNELS_LINEAR_LINEAR_H_
#define BATON_KERNELS_LINEAR_LINEAR_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

enum class WeightType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t WeightTypeBytes(WeightType type) { return type == WeightType::kF32 ? 4 : 2; }

inline constexpr int64_t kPanelRows = 16;
// Largest tile of one LinearCpu call.
inline constexpr int64_t kLinearTilePanelsMax = 8;
inline constexpr int64_t kLinearTileRowsMax = 96;
// Panels that keep the arithmetic units busy when there is one row only: the best tile for decode.
inline constexpr int64_t kLinearDecodePanels = 6;

// Bytes of a packed matrix with `n` rows (or two of n each, gated) of `k` elements.
constexpr int64_t NumPanels(int64_t n, bool gated) {
  return (n + kPanelRows - 1) / kPanelRows * (gated ? 2 : 1);
}
constexpr size_t PackedWeightBytes(int64_t n, int64_t k, bool gated, WeightType type) {
  return static_cast<size_t>(NumPanels(n, gated) * kPanelRows * k) * WeightTypeBytes(type);
}

// Where packed row `row` of part `part` (gated: 0 gate, 1 up; else 0) lies: panel and lane.
constexpr int64_t PanelOfRow(int64_t row, bool gated, int part) {
  return gated ? row / kPanelRows * 2 + part : row / kPanelRows;
}

// Position of a row within the 16 of its panel.
constexpr int64_t LaneOfRow(int64_t row, WeightType type) {
  const int64_t r = row % kPanelRows;
  return type == WeightType::kBF16 ? r % 8 * 2 + r / 8 : r;
}

// Copies rows [0, num_rows) of a row-major matrix [num_rows, k] to packed rows first_row... of
// `part`. The packed memory must have been zeroed. Types may differ only if `to` is kF32.
void PackLinearRows(const void* rows, WeightType from, int64_t num_rows, int64_t k,
                    int64_t first_row, bool gated, int part, WeightType to, void* packed);

struct LinearParams {
  const float* x = nullptr;      // [rows, k]
  const void* packed = nullptr;  // PackedWeightBytes(n, k, gated, type), aligned to 64 bytes.
  // In the order of packed rows, padded with zeros: [NumPanels(n, gated) * 16]; null: none.
  const float* bias = nullptr;
  float* y = nullptr;  // [rows, n]
  int64_t n = 0;       // Outputs (gated: of one part).
  int64_t k = 0;
  WeightType type = WeightType::kF32;
  bool gated = false;
};

// Outputs of rows [row_begin, row_end) and panels [panel_begin, panel_end), plain loops.
void LinearRef(const LinearParams& p, int64_t row_begin, int64_t row_end, int64_t panel_begin,
               int64_t panel_end);

// Floats of scratch of one thread, aligned to 64 bytes.
constexpr size_t LinearScratchFloats() {
  constexpr auto kDepth = size_t{256};
  constexpr auto kColumns = static_cast<size_t>(kLinearTilePanelsMax * kPanelRows);
  constexpr auto kRows = static_cast<size_t>(kLinearTileRowsMax);
  // Accumulators, weights and inputs of one slice along k.
  return kRows * kColumns + kDepth * kColumns + kRows * kDepth;
}

// The same, for one tile. REQUIRES: at most kLinearTilePanelsMax panels (gated: from an even panel,
// an even number) and kLinearTileRowsMax rows.
void LinearCpu(const LinearParams& p, int64_t row_begin, int64_t row_end, int64_t panel_begin,
               int64_t panel_end, float* scratch);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_LINEAR_H_
