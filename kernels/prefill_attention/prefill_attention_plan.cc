#include "kernels/prefill_attention/prefill_attention_plan.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace baton::kernels {
namespace {

// Of the 60 MB of second-level cache of an H200, whose halves may both hold a line; the rest is for
// queries and results. Measured: 32 MB cost 4 % at 16 x 1k and 1 % at 4 x 4k, 8 MB 2 %.
constexpr int64_t kSectionBytes = int64_t{16} << 20;
// What a tile costs besides its key tiles, in key tiles: queries in, results out.
constexpr int64_t kTileOverhead = 1;

struct Tile {
  int32_t sequence = 0;
  int32_t token_begin = 0;
  int32_t heads = 1;
  int64_t cost = 0;
};

int64_t KeyTiles(const PrefillPlanShape& shape, int32_t tile_keys, int64_t first_position,
                 int64_t last_position) {
  const int64_t first_key =
      shape.window > 0 ? std::max<int64_t>(0, first_position - shape.window + 1) : 0;
  return last_position / tile_keys - first_key / tile_keys + 1;
}

// The most heads of a group that fit in a tile.
int32_t HeadsFolded(int32_t group, int32_t rows) {
  int32_t heads = std::min(group, rows);
  while (group % heads != 0) --heads;
  return heads;
}

// Tiles of one sequence for one set of `heads` heads, first token first; the summed cost.
int64_t TilesOfSequence(const PrefillPlanShape& shape, const PrefillTiling& tiling,
                        int32_t sequence, int32_t query_length, int32_t kv_length, int32_t heads,
                        std::vector<Tile>* tiles) {
  const int32_t tokens = tiling.rows / heads;
  int64_t cost = 0;
  for (int32_t begin = 0; begin < query_length; begin += tokens) {
    const int32_t end = std::min(query_length, begin + tokens);
    const int64_t offset = kv_length - query_length;
    const int64_t tile_cost =
        kTileOverhead + KeyTiles(shape, tiling.keys, offset + begin, offset + end - 1);
    tiles->push_back({sequence, begin, heads, tile_cost});
    cost += tile_cost;
  }
  return cost;
}

// Sequences [begin, end) of the order, and their KV heads [kv_head_begin, kv_head_end).
struct Section {
  size_t begin = 0;
  size_t end = 0;
  int32_t kv_head_begin = 0;
  int32_t kv_head_end = 0;
};

std::vector<Section> MakeSections(const PrefillPlanShape& shape,
                                  absl::Span<const int32_t> kv_lengths,
                                  absl::Span<const int32_t> order) {
  std::vector<Section> sections;
  size_t i = 0;
  while (i < order.size()) {
    const auto bytes_of_head = [&](size_t at) {
      const int64_t length = kv_lengths[static_cast<size_t>(order[at])];
      return std::max<int64_t>(1, length) * shape.head_dim * 4;
    };
    const int64_t heads_fit = kSectionBytes / bytes_of_head(i);
    if (heads_fit < shape.num_kv_heads) {
      const auto step = static_cast<int32_t>(std::max<int64_t>(1, heads_fit));
      for (int32_t head = 0; head < shape.num_kv_heads; head += step) {
        sections.push_back({i, i + 1, head, std::min(shape.num_kv_heads, head + step)});
      }
      ++i;
      continue;
    }
    size_t end = i;
    int64_t bytes = 0;
    while (end < order.size()) {
      bytes += bytes_of_head(end) * shape.num_kv_heads;
      if (end > i && bytes > kSectionBytes) break;
      ++end;
    }
    sections.push_back({i, end, 0, shape.num_kv_heads});
    i = end;
  }
  return sections;
}

}  // namespace

PrefillTiling PrefillTilingOf(PrefillKernel kernel, int32_t head_dim) {
  if (kernel == PrefillKernel::kMma) return {.rows = 64, .keys = 64};
  return {.rows = head_dim <= 64 ? 192 : 128, .keys = head_dim <= 128 ? 128 : 64};
}

void PlanPrefillAttention(const PrefillPlanShape& shape, absl::Span<const int32_t> query_lengths,
                          absl::Span<const int32_t> kv_lengths, std::vector<PrefillWork>* work) {
  const PrefillTiling tiling = PrefillTilingOf(shape.kernel, shape.head_dim);
  const int32_t group = shape.num_heads / shape.num_kv_heads;
  const int32_t folded = HeadsFolded(group, tiling.rows);

  std::vector<int32_t> order;
  for (size_t s = 0; s < query_lengths.size(); ++s) {
    if (query_lengths[s] > 0) order.push_back(static_cast<int32_t>(s));
  }
  // Ties are broken by what tells items apart, so that the list is the same everywhere.
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int32_t length_a = kv_lengths[static_cast<size_t>(a)];
    const int32_t length_b = kv_lengths[static_cast<size_t>(b)];
    return length_a != length_b ? length_a > length_b : a < b;
  });

  std::vector<Tile> tiles;
  std::vector<Tile> separate;
  for (const Section& section : MakeSections(shape, kv_lengths, order)) {
    tiles.clear();
    for (size_t i = section.begin; i < section.end; ++i) {
      const auto s = static_cast<size_t>(order[i]);
      const size_t first = tiles.size();
      const int64_t cost =
          TilesOfSequence(shape, tiling, order[i], query_lengths[s], kv_lengths[s], folded, &tiles);
      if (folded == 1) continue;
      separate.clear();
      const int64_t cost_separate =
          TilesOfSequence(shape, tiling, order[i], query_lengths[s], kv_lengths[s], 1, &separate);
      if (cost_separate * folded < cost) {
        tiles.resize(first);
        tiles.insert(tiles.end(), separate.begin(), separate.end());
      }
    }
    std::sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
      return std::tuple(-a.cost, a.sequence, a.token_begin, a.heads) <
             std::tuple(-b.cost, b.sequence, b.token_begin, b.heads);
    });
    const int32_t head_end = section.kv_head_end * group;
    for (const Tile& tile : tiles) {
      for (int32_t head = section.kv_head_begin * group; head < head_end; head += tile.heads) {
        work->push_back({tile.sequence, head, tile.token_begin, tile.heads});
      }
    }
  }
}

int64_t PrefillWorkMax(const PrefillPlanShape& shape, int64_t num_tokens_max,
                       int64_t num_sequences_max) {
  const PrefillTiling tiling = PrefillTilingOf(shape.kernel, shape.head_dim);
  const int32_t folded = HeadsFolded(shape.num_heads / shape.num_kv_heads, tiling.rows);
  const int64_t sequences = std::min(num_tokens_max, num_sequences_max);
  const auto most = [&](int32_t heads) {
    return (num_tokens_max / (tiling.rows / heads) + sequences) * (shape.num_heads / heads);
  };
  return std::max(most(1), most(folded));
}

}  // namespace baton::kernels
