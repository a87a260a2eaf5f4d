// AttentionCpu against double precision over random paged contexts, and exact independence of a row
// from chunking, other rows, block size and whatever lies beyond its position.
#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kGuard = -12345.0f;

struct alignas(64) Line {
  float floats[16];
};

struct Shape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

std::vector<float> RandomFloats(size_t n, uint32_t seed, float deviation = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

// One sequence of `context` tokens whose keys and values are laid out in blocks of shuffled order.
// All memory that belongs to no token is NaN.
class Sequence {
 public:
  Sequence(const Shape& shape, int32_t context, int32_t block_tokens_log2)
      : shape_(shape), log2_(block_tokens_log2) {
    const int32_t block_tokens = 1 << log2_;
    const int32_t blocks = (context + block_tokens - 1) / block_tokens;
    table_.resize(static_cast<size_t>(blocks));
    std::iota(table_.begin(), table_.end(), 1);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(9));
    head_stride_ = int64_t{2} * block_tokens * shape.head_dim;
    block_stride_ = head_stride_ * shape.num_kv_heads;
    pool_.assign(static_cast<size_t>((blocks + 2) * block_stride_), kNaN);
    const auto dim = static_cast<size_t>(shape.head_dim);
    const auto kv = RandomFloats(
        static_cast<size_t>(context) * static_cast<size_t>(shape.num_kv_heads) * 2 * dim, 1);
    size_t next = 0;
    for (int32_t t = 0; t < context; ++t) {
      for (int32_t h = 0; h < shape.num_kv_heads; ++h) {
        float* key = Layer().Key(table_[static_cast<size_t>(t >> log2_)], h, t % block_tokens);
        for (size_t i = 0; i < dim; ++i) key[i] = kv[next++];
        for (size_t i = 0; i < dim; ++i) {
          key[static_cast<size_t>(head_stride_ / 2) + i] = kv[next++];
        }
      }
    }
    q_ = RandomFloats(static_cast<size_t>(context * shape.num_heads) * dim, 2, 2.0f);
  }

  std::vector<float>& q() { return q_; }
  std::vector<float>& pool() { return pool_; }
  int64_t Group() const { return shape_.num_heads / shape_.num_kv_heads; }

  // Output rows of tokens [begin, end), computed in work items of at most `chunk` tokens.
  template <typename Kernel>
  std::vector<float> Attend(int32_t begin, int32_t end, int32_t chunk, Kernel kernel) {
    const auto row = static_cast<size_t>(shape_.num_heads * shape_.head_dim);
    const size_t size = static_cast<size_t>(end - begin) * row;
    std::vector<float> out(size + 16, kNaN);
    std::fill(out.begin() + static_cast<ptrdiff_t>(size), out.end(), kGuard);
    const AttentionParams p{.q = q_.data() + static_cast<size_t>(begin) * row,
                            .out = out.data(),
                            .kv = Layer(),
                            .num_heads = shape_.num_heads,
                            .num_kv_heads = shape_.num_kv_heads,
                            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim))};
    for (int32_t t = begin; t < end; t += chunk) {
      for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
        kernel(p, AttentionWork{.token_begin = t - begin,
                                .num_tokens = std::min(chunk, end - t),
                                .first_position = t,
                                .kv_head = h,
                                .block_table = table_.data()});
      }
    }
    for (size_t i = size; i < out.size(); ++i) EXPECT_EQ(out[i], kGuard);
    out.resize(size);
    return out;
  }
  std::vector<float> Cpu(int32_t begin, int32_t end, int32_t chunk) {
    const auto floats = AttentionScratchFloats(static_cast<int32_t>(Group()), shape_.head_dim);
    std::vector<Line> scratch(floats / 16 + 2);
    auto* base = scratch[0].floats;
    std::fill(base, base + scratch.size() * 16, kGuard);
    auto out = Attend(begin, end, chunk, [&](const AttentionParams& p, const AttentionWork& w) {
      AttentionCpu(p, w, base);
    });
    for (size_t i = floats; i < scratch.size() * 16; ++i) EXPECT_EQ(base[i], kGuard);
    return out;
  }
  int32_t MaxChunk() const { return AttentionWorkTokens(static_cast<int32_t>(Group())); }

 private:
  PagedKvLayer Layer() {
    return {.base = pool_.data(),
            .block_stride = block_stride_,
            .head_stride = head_stride_,
            .value_offset = head_stride_ / 2,
            .block_tokens_log2 = log2_,
            .head_dim = shape_.head_dim};
  }

  Shape shape_;
  int32_t log2_;
  int64_t head_stride_ = 0;
  int64_t block_stride_ = 0;
  std::vector<int32_t> table_;
  std::vector<float> pool_;
  std::vector<float> q_;
};

const Shape kShapes[] = {{8, 4, 8},   {1, 1, 128}, {4, 2, 20}, {6, 1, 64},
                         {2, 2, 256}, {3, 1, 36},  {32, 1, 10}};

TEST(Attention, EqualsDoublePrecisionForRandomContexts) {
  for (const Shape& shape : kShapes) {
    for (const int32_t context : {1, 2, 15, 16, 17, 63, 64, 65, 150}) {
      Sequence s(shape, context, 4);
      const auto expected = s.Attend(0, context, 1, AttentionRef);
      const auto actual = s.Cpu(0, context, s.MaxChunk());
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], 5e-6) << shape.head_dim << " " << context << " " << i;
      }
    }
  }
}

TEST(Attention, BitsDoNotDependOnChunkingOrOnBlockSize) {
  for (const Shape& shape : kShapes) {
    const int32_t context = 131;
    Sequence small_blocks(shape, context, 4);
    Sequence large_blocks(shape, context, 6);
    const auto whole = small_blocks.Cpu(0, context, small_blocks.MaxChunk());
    EXPECT_EQ(small_blocks.Cpu(0, context, 1), whole);
    EXPECT_EQ(small_blocks.Cpu(0, context, std::min(5, small_blocks.MaxChunk())), whole);
    EXPECT_EQ(large_blocks.Cpu(0, context, std::min(7, large_blocks.MaxChunk())), whole);
    // The last tokens alone, as a decode step or a later chunk has them.
    const auto row = static_cast<ptrdiff_t>(shape.num_heads * shape.head_dim);
    EXPECT_EQ(large_blocks.Cpu(100, context, large_blocks.MaxChunk()),
              std::vector<float>(whole.begin() + 100 * row, whole.end()));
  }
}

TEST(Attention, ANaNQueryStaysInItsRow) {
  const Shape shape{4, 2, 32};
  Sequence s(shape, 40, 4);
  const auto clean = s.Cpu(0, 40, s.MaxChunk());
  s.q()[(17 * 4 + 1) * 32 + 3] = kNaN;
  const auto poisoned = s.Cpu(0, 40, s.MaxChunk());
  for (size_t i = 0; i < clean.size(); ++i) {
    if (i / 32 == 17 * 4 + 1) {
      EXPECT_TRUE(std::isnan(poisoned[i]));
    } else {
      EXPECT_EQ(poisoned[i], clean[i]);
    }
  }
}

TEST(Attention, ANaNKeyOrValueReachesOnlyRowsThatMaySeeIt) {
  const Shape shape{2, 1, 16};
  for (const bool in_key : {true, false}) {
    Sequence s(shape, 48, 6);  // One block: token t's key is at t * 16, its value 1,024 further.
    const auto clean = s.Cpu(0, 48, s.MaxChunk());
    const size_t block = static_cast<size_t>(2 * 64 * 16);
    s.pool()[block + 20 * 16 + 5 + (in_key ? 0 : 64 * 16)] = kNaN;
    const auto poisoned = s.Cpu(0, 48, s.MaxChunk());
    for (size_t i = 0; i < clean.size(); ++i) {
      if (i / 32 < 20) {
        EXPECT_EQ(poisoned[i], clean[i]) << i;
      } else if (in_key || i % 16 == 5) {
        EXPECT_TRUE(std::isnan(poisoned[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels
