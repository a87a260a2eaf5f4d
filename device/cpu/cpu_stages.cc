// One stage per operation: how many items it has in the running step, and what an item computes.
// Items are cut so that one takes some ten microseconds at most sizes.
#include <algorithm>

#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_weight.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sampling/sampling.h"

namespace baton {
namespace {

// Floats that an item of a memory-bound operation handles: 64 KiB.
constexpr int64_t kItemFloats = 16384;

const CpuWeight& Cpu(const WeightPtr& weight) { return static_cast<const CpuWeight&>(*weight); }

int32_t CeilDivide(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

int64_t RowsPerItem(int64_t cols) { return std::max<int64_t>(1, kItemFloats / cols); }

// Shape of a tile of a Linear operation for a number of rows.
struct LinearTile {
  int64_t rows;
  int64_t panels;
};
LinearTile ChooseLinearTile(int64_t rows) {
  // Few rows: the cut that keeps twelve accumulators busy. An even number in any case, for gates.
  if (rows <= 6) return {rows, kernels::kLinearDecodePanels};
  return {kernels::kLinearTileRowsMax, kernels::kLinearTilePanelsMax};
}

}  // namespace

void CpuProgram::Build(const EmbedOp& op) {
  const int64_t cols = op.table->cols();
  const int64_t rows_per_item = RowsPerItem(cols);
  AddStage([=, this] { return CeilDivide(NumRows(ValueRows::kTokens), rows_per_item); },
           [=, this](int32_t item, int) {
             const CpuWeight& table = Cpu(op.table);
             const int64_t begin = item * rows_per_item;
             kernels::Embed({.ids = token_ids_.data(),
                             .packed = table.packed(),
                             .out = ValueData(op.out),
                             .n = table.rows(),
                             .k = cols,
                             .type = table.type()},
                            begin, std::min(begin + rows_per_item, NumRows(ValueRows::kTokens)));
           });
}

void CpuProgram::Build(const AddNormOp& op) {
  const int64_t cols = op.gamma->rows();
  const int64_t rows_per_item = RowsPerItem(cols);
  AddStage([=, this] { return CeilDivide(NumRows(op.out), rows_per_item); },
           [=, this](int32_t item, int) {
             const int64_t begin = item * rows_per_item;
             kernels::AddNormCpu({.delta = op.delta == kNoValue ? nullptr : ValueData(op.delta),
                                  .residual = ValueData(op.residual),
                                  .gamma = Cpu(op.gamma).floats(),
                                  .out = ValueData(op.out),
                                  .cols = cols,
                                  .epsilon = op.epsilon},
                                 begin, std::min(begin + rows_per_item, NumRows(op.out)));
           });
}

void CpuProgram::Build(const LinearOp& op) {
  const bool gated = op.epilogue == LinearEpilogue::kSwiglu;
  const int64_t num_panels = kernels::NumPanels(op.weight->rows(), gated);
  AddStage(
      [=, this] {
        const int64_t rows = NumRows(op.out);
        if (rows == 0) return 0;
        const LinearTile tile = ChooseLinearTile(rows);
        return CeilDivide(rows, tile.rows) * CeilDivide(num_panels, tile.panels);
      },
      [=, this](int32_t item, int thread) {
        const int64_t rows = NumRows(op.out);
        const LinearTile tile = ChooseLinearTile(rows);
        // Row tiles of the same panels are neighbours, so that weights are read once from memory.
        const int64_t row_tiles = CeilDivide(rows, tile.rows);
        const int64_t row = item % row_tiles * tile.rows;
        const int64_t panel = item / row_tiles * tile.panels;
        kernels::LinearCpu({.x = ValueData(op.in),
                            .packed = Cpu(op.weight).packed(),
                            .bias = op.bias == nullptr ? nullptr : Cpu(op.bias).floats(),
                            .y = ValueData(op.out),
                            .n = op.weight->rows(),
                            .k = op.weight->cols(),
                            .type = Cpu(op.weight).type(),
                            .gated = gated},
                           row, std::min(row + tile.rows, rows), panel,
                           std::min(panel + tile.panels, num_panels),
                           reinterpret_cast<float*>(Scratch(thread)));
      });
}

void CpuProgram::Build(const RopeAnglesOp& op) {
  constexpr int64_t kRowsPerItem = 16;  // Sines cost more than memory here.
  AddStage([=, this] { return CeilDivide(NumRows(op.out), kRowsPerItem); },
           [=, this](int32_t item, int) {
             const int64_t begin = item * kRowsPerItem;
             kernels::RopeAngles({.positions = step_->meta.positions.data(),
                                  .inverse_frequencies = Cpu(op.inverse_frequencies).floats(),
                                  .out = ValueData(op.out),
                                  .half = op.inverse_frequencies->rows(),
                                  .scale = op.scale},
                                 begin, std::min(begin + kRowsPerItem, NumRows(op.out)));
           });
}

void CpuProgram::Build(const RopeKvWriteOp& op) {
  const int64_t cols = int64_t{op.num_heads + 2 * op.num_kv_heads} * op.head_dim;
  const int64_t rows_per_item = RowsPerItem(cols);
  AddStage([=, this] { return CeilDivide(NumRows(op.q), rows_per_item); },
           [=, this](int32_t item, int) {
             const int64_t begin = item * rows_per_item;
             kernels::RopeKvWriteCpu({.qkv = ValueData(op.qkv),
                                      .angles = ValueData(op.angles),
                                      .slots = step_->meta.kv_slots.data(),
                                      .q = ValueData(op.q),
                                      .kv = KvLayer(op.layer),
                                      .num_heads = op.num_heads,
                                      .num_kv_heads = op.num_kv_heads},
                                     begin, std::min(begin + rows_per_item, NumRows(op.q)));
           });
  AddStage([this] { return step_->meta.report_kv_layers ? 1 : 0; },
           [=, this](int32_t, int) {
             step_->kv_layers_ready.store(op.layer + 1, std::memory_order_release);
           });
}

void CpuProgram::Build(const AttentionOp& op) {
  AddStage([=, this] { return static_cast<int32_t>(attention_work_.size()) * op.num_kv_heads; },
           [=, this](int32_t item, int thread) {
             kernels::AttentionWork work =
                 attention_work_[static_cast<size_t>(item / op.num_kv_heads)];
             work.kv_head = item % op.num_kv_heads;
             kernels::AttentionCpu({.q = ValueData(op.q),
                                    .out = ValueData(op.out),
                                    .kv = KvLayer(op.layer),
                                    .num_heads = op.num_heads,
                                    .num_kv_heads = op.num_kv_heads,
                                    .scale = op.scale},
                                   work, reinterpret_cast<float*>(Scratch(thread)));
           });
}

void CpuProgram::Build(const GatherRowsOp& op) {
  const int64_t cols = list_.values[static_cast<size_t>(op.in.value)].cols;
  const int64_t rows_per_item = RowsPerItem(cols);
  AddStage([=, this] { return CeilDivide(NumRows(op.out), rows_per_item); },
           [=, this](int32_t item, int) {
             const int64_t begin = item * rows_per_item;
             kernels::GatherRows(ValueData(op.in), step_->meta.sample_rows.data(), cols, begin,
                                 std::min(begin + rows_per_item, NumRows(op.out)),
                                 ValueData(op.out));
           });
}

void CpuProgram::Build(const SampleOp& op) {
  const int64_t cols = list_.values[static_cast<size_t>(op.logits.value)].cols;
  AddStage([=, this] { return static_cast<int32_t>(NumRows(op.logits)); },
           [=, this](int32_t item, int thread) {
             const auto row = static_cast<size_t>(item);
             kernels::SampleRowCpu(ValueData(op.logits) + item * cols, op.vocab,
                                   step_->meta.sampling[row], Scratch(thread),
                                   &step_->outputs.samples[row]);
           });
}

}  // namespace baton
