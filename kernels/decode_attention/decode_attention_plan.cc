#include "kernels/decode_attention/decode_attention_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace baton::kernels {
namespace {

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t Group(const DecodeAttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }

// Units of a sequence with `query_length` rows that share a KV head.
int32_t RowGroups(const DecodeAttentionShape& shape, int32_t query_length) {
  return static_cast<int32_t>(
      DivideUp(int64_t{query_length} * Group(shape), DecodeRowsPerItem(shape)));
}

// One planning run: walks the units in order and cuts them at the borders of the runs.
class Planner {
 public:
  Planner(const DecodePlanOptions& options, const DecodePlanInput& input, DecodePlan& plan)
      : options_(options), input_(input), plan_(plan) {}

  bool Run() {
    plan_.items.assign(static_cast<size_t>(options_.grid_size), DecodeItem{});
    plan_.run_ends.assign(static_cast<size_t>(options_.grid_size), -1);
    plan_.num_partials = 0;
    plan_.num_counters = 0;
    CountTiles();
    FindPieceAtoms();
    plan_.run_tiles_max = 0;
    for (int32_t s = 0; s < NumSequences(); ++s) {
      const int32_t length = QueryLength(s);
      if (input_.kv_lengths[s] == 0 || length == 0) continue;
      for (int32_t group = 0; group < RowGroups(options_.shape, length); ++group) {
        for (int32_t head = 0; head < options_.shape.num_kv_heads; ++head) {
          const DecodeItem unit = UnitOf(s, head, group);
          piece_atoms_ > 0 ? CutUnitEvenly(unit) : CutUnitAtRuns(unit);
        }
      }
    }
    EndRun();
    AddZeroRows();
    return plan_.items.size() <= static_cast<size_t>(options_.items_max) &&
           plan_.num_partials <= options_.partials_max;
  }

 private:
  int32_t NumSequences() const { return static_cast<int32_t>(input_.kv_lengths.size()); }
  int32_t SplitTiles() const { return options_.split_tokens / kDecodeTileTokens; }

  // Rows of a sequence; 0 when the prefill kernel does them.
  int32_t QueryLength(int32_t s) const {
    const int32_t length = input_.query_starts[s + 1] - input_.query_starts[s];
    return input_.kv_lengths[s] > 0 && length > options_.shape.query_length_max ? 0 : length;
  }

  // A unit as one item: all of its tiles.
  DecodeItem UnitOf(int32_t s, int32_t head, int32_t row_group) const {
    const DecodeAttentionShape& shape = options_.shape;
    const int32_t rows_per_item = DecodeRowsPerItem(shape);
    const int32_t rows = QueryLength(s) * Group(shape);
    DecodeItem unit;
    unit.query_start = input_.query_starts[s];
    unit.first_position = input_.kv_lengths[s] - QueryLength(s);
    unit.block_table = input_.block_table_starts[s];
    unit.kv_head = static_cast<int16_t>(head);
    unit.row_begin = static_cast<int16_t>(row_group * rows_per_item);
    unit.num_rows = static_cast<int16_t>(std::min(rows - unit.row_begin, rows_per_item));
    const int32_t first = unit.first_position + unit.row_begin / Group(shape);
    const int32_t last = unit.first_position + (unit.row_begin + unit.num_rows - 1) / Group(shape);
    const int32_t begin = shape.window > 0 ? std::max(0, first - shape.window + 1) : 0;
    unit.tile_begin = begin / kDecodeTileTokens;
    unit.tile_end = last / kDecodeTileTokens + 1;
    return unit;
  }

  int32_t RunTilesMin() const {
    if (options_.run_tiles_min > 0) return options_.run_tiles_min;
    return DecodePaddedHeadDim(options_.shape.head_dim) == 128 ? 2 : 4;
  }

  // What a unit may be cut into: tiles, or in fixed mode splits.
  int32_t AtomTiles() const { return options_.split == DecodeSplit::kFixed ? SplitTiles() : 1; }
  int32_t NumAtoms(const DecodeItem& unit) const {
    return (unit.tile_end - 1) / AtomTiles() + 1 - unit.tile_begin / AtomTiles();
  }

  // Calls visit(unit) for the units of the first KV head.
  template <typename Visit>
  void ForEachUnitOfAHead(Visit visit) const {
    for (int32_t s = 0; s < NumSequences(); ++s) {
      const int32_t length = QueryLength(s);
      if (input_.kv_lengths[s] == 0 || length == 0) continue;
      for (int32_t group = 0; group < RowGroups(options_.shape, length); ++group) {
        visit(UnitOf(s, 0, group));
      }
    }
  }

  void CountTiles() {
    total_tiles_ = 0;
    num_units_ = 0;
    ForEachUnitOfAHead([&](const DecodeItem& unit) {
      total_tiles_ += unit.tile_end - unit.tile_begin;
      ++num_units_;
    });
    total_tiles_ *= options_.shape.num_kv_heads;
    num_units_ *= options_.shape.num_kv_heads;
    num_runs_ = std::clamp<int64_t>(DivideUp(total_tiles_, RunTilesMin()), 1, options_.grid_size);
    // A border this near to the end of a unit moves there: it saves two partial results.
    snap_tiles_ = static_cast<int32_t>(total_tiles_ / num_runs_ / 64);
  }

  // Short runs should not cross units: the end of an item costs as much as kItemTiles tiles. When
  // pieces of units, a run each, are about as short as equal runs would be, they are better.
  void FindPieceAtoms() {
    constexpr int64_t kItemTiles = 2;
    piece_atoms_ = 0;
    if (num_units_ > options_.grid_size) return;
    const int64_t atom = AtomTiles();
    const int64_t run_tiles = DivideUp(total_tiles_, options_.grid_size);
    const int64_t first = std::max<int64_t>({run_tiles / atom, RunTilesMin() / atom, int64_t{1}});
    const int64_t last = std::max(first, DivideUp(run_tiles + kItemTiles, atom));
    for (int64_t atoms = first; atoms <= last && piece_atoms_ == 0; ++atoms) {
      int64_t pieces = 0;
      ForEachUnitOfAHead(
          [&](const DecodeItem& unit) { pieces += DivideUp(NumAtoms(unit), atoms); });
      if (pieces * options_.shape.num_kv_heads <= options_.grid_size) piece_atoms_ = atoms;
    }
  }

  // Tiles of the line before run `run`.
  int64_t RunBegin(int64_t run) const {
    return run >= num_runs_ ? std::numeric_limits<int64_t>::max() / 2
                            : total_tiles_ * run / num_runs_;
  }

  // Where the item that begins at `begin` ends when its run should end at `end`, within the unit.
  int32_t Snap(const DecodeItem& unit, int32_t begin, int32_t end) const {
    if (options_.split == DecodeSplit::kFixed) {
      const int32_t split = SplitTiles();
      end = std::max((end + split / 2) / split * split, begin);
      return std::min(end, unit.tile_end);
    }
    if (unit.tile_end - end <= snap_tiles_) return unit.tile_end;
    return begin == unit.tile_begin && end - begin <= snap_tiles_ ? begin : end;
  }

  void EndRun() {
    plan_.run_tiles_max = std::max(plan_.run_tiles_max, run_tiles_);
    run_tiles_ = 0;
  }

  // Pieces of at most piece_atoms_, each a run of its own.
  void CutUnitEvenly(const DecodeItem& unit) {
    plan_.unit_items.clear();
    const int64_t atoms = NumAtoms(unit);
    const int64_t pieces = DivideUp(atoms, piece_atoms_);
    const int64_t first_atom = unit.tile_begin / AtomTiles();
    for (int64_t i = 0; i < pieces; ++i) {
      const auto border = [&](int64_t piece) {
        const int64_t tile = (first_atom + atoms * piece / pieces) * AtomTiles();
        return static_cast<int32_t>(std::clamp<int64_t>(tile, unit.tile_begin, unit.tile_end));
      };
      DecodeItem item = unit;
      item.tile_begin = border(i);
      item.tile_end = i + 1 == pieces ? unit.tile_end : border(i + 1);
      plan_.unit_items.push_back(Append(static_cast<int32_t>(run_), item));
      run_tiles_ = item.tile_end - item.tile_begin;
      EndRun();
      ++run_;
    }
    FinishUnit(unit);
  }

  void CutUnitAtRuns(const DecodeItem& unit) {
    plan_.unit_items.clear();
    for (int32_t begin = unit.tile_begin; begin < unit.tile_end;) {
      const int64_t left = RunBegin(run_ + 1) - line_tile_;
      int32_t end = begin;
      if (left >= unit.tile_end - begin) {
        end = unit.tile_end;
      } else if (left > 0) {
        end = Snap(unit, begin, begin + static_cast<int32_t>(left));
      }
      if (end > begin) {
        DecodeItem item = unit;
        item.tile_begin = begin;
        item.tile_end = end;
        plan_.unit_items.push_back(Append(static_cast<int32_t>(run_), item));
        line_tile_ += end - begin;
        run_tiles_ += end - begin;
        begin = end;
      }
      if (begin < unit.tile_end) {
        EndRun();
        ++run_;
      }
    }
    FinishUnit(unit);
  }

  // Numbers the splits of the unit that was cut into unit_items.
  void FinishUnit(const DecodeItem& unit) {
    const auto num_items = static_cast<int32_t>(plan_.unit_items.size());
    const bool fixed = options_.split == DecodeSplit::kFixed;
    const int32_t first_split = fixed ? unit.tile_begin / SplitTiles() : 0;
    const int32_t num_splits =
        fixed ? (unit.tile_end - 1) / SplitTiles() + 1 - first_split : num_items;
    for (int32_t i = 0; i < num_items; ++i) {
      DecodeItem& item = plan_.items[static_cast<size_t>(plan_.unit_items[i])];
      item.num_items = static_cast<int16_t>(num_items);
      item.num_splits = num_splits;
      if (num_splits == 1) continue;
      item.unit_partial = plan_.num_partials;
      item.partial =
          plan_.num_partials + (fixed ? item.tile_begin / SplitTiles() - first_split : i);
      item.counter = plan_.num_counters;
    }
    if (num_splits > 1) plan_.num_partials += num_splits;
    if (num_items > 1) ++plan_.num_counters;
  }

  int32_t Append(int32_t run, const DecodeItem& item) {
    int32_t& end = plan_.run_ends[static_cast<size_t>(run)];
    int32_t index = run;
    if (end >= 0) {
      index = static_cast<int32_t>(plan_.items.size());
      plan_.items[static_cast<size_t>(end)].next = index;
      plan_.items.push_back(item);
    } else {
      plan_.items[static_cast<size_t>(run)] = item;
    }
    end = index;
    return index;
  }

  // Rows of padding, neighbours together, from the last thread block down: in small steps those
  // have nothing else to do.
  void AddZeroRows() {
    constexpr int32_t kRowsMax = 64;
    int32_t run = options_.grid_size - 1;
    int32_t begin = 0;
    int32_t end = 0;
    const auto add = [&] {
      if (end == begin) return;
      DecodeItem item;
      item.query_start = begin;
      item.num_rows = static_cast<int16_t>(end - begin);
      item.kv_head = kDecodeZeroRows;
      Append(run, item);
      run = run > 0 ? run - 1 : options_.grid_size - 1;
    };
    for (int32_t s = 0; s < NumSequences(); ++s) {
      if (input_.kv_lengths[s] > 0) continue;
      for (int32_t row = input_.query_starts[s]; row < input_.query_starts[s + 1]; ++row) {
        if (row != end || end - begin == kRowsMax) {
          add();
          begin = row;
        }
        end = row + 1;
      }
    }
    add();
  }

  const DecodePlanOptions& options_;
  const DecodePlanInput& input_;
  DecodePlan& plan_;

  int64_t total_tiles_ = 0;
  int64_t num_units_ = 0;
  int64_t piece_atoms_ = 0;  // 0: runs of equal length, across units.
  int64_t num_runs_ = 1;
  int32_t snap_tiles_ = 0;
  int64_t run_ = 0;        // That is being filled.
  int64_t run_tiles_ = 0;  // In it.
  int64_t line_tile_ = 0;  // Tiles given out so far.
};

// Units of so many sequences.
int64_t UnitsMax(const DecodeAttentionShape& shape, int32_t num_sequences) {
  return int64_t{num_sequences} * shape.num_kv_heads * RowGroups(shape, shape.query_length_max);
}

}  // namespace

bool PlanDecodeAttention(const DecodePlanOptions& options, const DecodePlanInput& input,
                         DecodePlan* plan) {
  return Planner(options, input, *plan).Run();
}

int32_t DecodeItemsMax(const DecodePlanOptions& options, int32_t num_sequences) {
  // A run adds at most one item to the units, a run without work has one too; rows of padding of a
  // sequence make up to two.
  return static_cast<int32_t>(options.grid_size + UnitsMax(options.shape, num_sequences) +
                              2 * int64_t{num_sequences});
}

int32_t DecodePartialsMax(const DecodePlanOptions& options, int32_t num_sequences,
                          int64_t kv_tokens_max) {
  if (options.split == DecodeSplit::kBalanced) return 2 * options.grid_size;
  // A sequence has a split more than its length suggests at each end.
  const int64_t splits = kv_tokens_max / options.split_tokens + 2 * int64_t{num_sequences};
  return static_cast<int32_t>(splits * options.shape.num_kv_heads *
                              RowGroups(options.shape, options.shape.query_length_max));
}

}  // namespace baton::kernels
