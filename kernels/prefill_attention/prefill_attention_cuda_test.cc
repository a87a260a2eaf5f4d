// Both prefill attention kernels against plain loops in double precision, over shapes, options and
// batches; NaN in every slot without a visible key; and equal bits however a prompt is cut and
// whatever shares its batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "kernels/prefill_attention/prefill_attention_testing.h"

namespace baton::kernels::testing {
namespace {

// The rows of a chunk worth checking: all of few, else the ends, tile borders and some others.
std::vector<int32_t> RowsToCheck(int32_t length, std::mt19937& random) {
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < length; ++i) {
    const int32_t in_tile = i % 64;
    if (length <= 40 || i < 2 || i >= length - 2 || random() % 24 == 0 ||
        ((in_tile < 1 || in_tile == 63) && random() % 4 == 0)) {
      rows.push_back(i);
    }
  }
  return rows;
}

void ExpectMatchesReference(const PrefillCase& c) {
  SCOPED_TRACE(::testing::Message()
               << (c.kernel == PrefillKernel::kSm90 ? "sm90" : "mma") << " type "
               << static_cast<int>(c.type) << " head_dim " << c.head_dim << " heads " << c.num_heads
               << "/" << c.num_kv_heads << " block_tokens " << c.block_tokens << " window "
               << c.window << " softcap " << c.softcap << " sequences " << c.query_lengths.size()
               << " q[0] " << c.query_lengths[0] << " kv[0] " << c.kv_lengths[0] << " blocks "
               << c.num_multiprocessors);
  PrefillFixture fixture(c);
  const std::vector<float> out = FloatsFromHalves(c.type, fixture.Run());
  std::mt19937 random(static_cast<uint32_t>(c.seed));
  std::vector<float> checked;
  std::vector<float> expected;
  int reported = 0;
  int64_t token = 0;
  for (size_t s = 0; s < c.query_lengths.size(); ++s) {
    for (const int32_t row : RowsToCheck(c.query_lengths[s], random)) {
      for (int32_t head = 0; head < c.num_heads; ++head) {
        if (c.num_heads > 4 && random() % 3 != 0) continue;
        const std::vector<float> reference = fixture.Reference(s, row, head);
        const auto at = out.begin() + ((token + row) * c.num_heads + head) * c.head_dim;
        const std::vector<float> actual(at, at + c.head_dim);
        const double error = RelativeError(reference, actual);
        if (!(error < 6 * HalfTolerance(c.type)) && reported++ < 4) {
          ADD_FAILURE() << "sequence " << s << " row " << row << " head " << head << ": error "
                        << error << ", " << actual[0] << " " << actual[1] << " " << actual[2]
                        << " ... for " << reference[0] << " " << reference[1] << " "
                        << reference[2];
        }
        checked.insert(checked.end(), actual.begin(), actual.end());
        expected.insert(expected.end(), reference.begin(), reference.end());
      }
    }
    token += c.query_lengths[s];
  }
  int64_t bad = 0;
  for (const float x : out) bad += !std::isfinite(x);
  EXPECT_EQ(bad, 0) << "unwritten or not finite";
  const double error = RelativeError(expected, checked);
  EXPECT_LT(error, HalfTolerance(c.type)) << reported << " bad rows";
}

std::vector<PrefillKernel> KernelsFor(int32_t head_dim) {
  if (PrefillSm90Supports(head_dim, 64)) return {PrefillKernel::kSm90, PrefillKernel::kMma};
  return {PrefillKernel::kMma};
}

class PrefillAttentionCuda : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

TEST_P(PrefillAttentionCuda, MatchesTheReferenceForOneChunk) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const int32_t length : {1, 63, 64, 65, 127, 128, 129, 1000}) {
      ExpectMatchesReference({.kernel = kernel,
                              .head_dim = GetParam(),
                              .query_lengths = {length},
                              .kv_lengths = {length},
                              .seed = static_cast<uint64_t>(length)});
    }
  }
}

TEST_P(PrefillAttentionCuda, MatchesTheReferenceBehindACachedPrefix) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const auto& [query, kv] : std::vector<std::pair<int32_t, int32_t>>{
             {1, 2}, {1, 700}, {5, 128}, {64, 65}, {128, 1024}, {130, 391}, {200, 777}}) {
      ExpectMatchesReference({.kernel = kernel,
                              .head_dim = GetParam(),
                              .query_lengths = {query},
                              .kv_lengths = {kv},
                              .seed = static_cast<uint64_t>(kv)});
    }
  }
}

TEST_P(PrefillAttentionCuda, MatchesTheReferenceForGroupedHeads) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const auto& [heads, kv_heads] :
         std::vector<std::pair<int32_t, int32_t>>{{4, 2}, {4, 1}, {16, 2}, {6, 2}, {71, 1}}) {
      ExpectMatchesReference({.kernel = kernel,
                              .head_dim = GetParam(),
                              .num_heads = heads,
                              .num_kv_heads = kv_heads,
                              .query_lengths = {150, 1},
                              .kv_lengths = {333, 90},
                              .seed = static_cast<uint64_t>(heads)});
    }
  }
}

TEST_P(PrefillAttentionCuda, MatchesTheReferenceForPackedSequencesOfAnyBlockSize) {
  std::mt19937 random(7);
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
      for (const int32_t block_tokens : {16, 32, 64, 128, 256}) {
        PrefillCase c = {.kernel = kernel,
                         .type = type,
                         .head_dim = GetParam(),
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .block_tokens = block_tokens,
                         .num_multiprocessors = 1 + static_cast<int32_t>(random() % 5),
                         .seed = random()};
        for (int s = 0; s < 7; ++s) {
          c.query_lengths.push_back(s == 2 ? 0 : static_cast<int32_t>(random() % 200));
          c.kv_lengths.push_back(
              s == 2 ? 0 : c.query_lengths.back() + static_cast<int32_t>(random() % 300));
        }
        ExpectMatchesReference(c);
      }
    }
  }
}

TEST_P(PrefillAttentionCuda, MatchesTheReferenceWithWindowAndSoftcap) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const int32_t window : {1, 17, 64, 128, 200, 5000}) {
      for (const float softcap : {0.0f, 5.0f}) {
        ExpectMatchesReference({.kernel = kernel,
                                .head_dim = GetParam(),
                                .num_heads = 4,
                                .num_kv_heads = 2,
                                .block_tokens = window == 17 ? 16 : 64,
                                .query_lengths = {300, 65, 1},
                                .kv_lengths = {300, 500, 400},
                                .window = window,
                                .softcap = softcap,
                                .query_scale = 3,
                                .seed = static_cast<uint64_t>(window)});
      }
    }
    ExpectMatchesReference({.kernel = kernel,
                            .head_dim = GetParam(),
                            .query_lengths = {300},
                            .kv_lengths = {300},
                            .softcap = 50,
                            .query_scale = 8});
  }
}

// The kernels go backwards over the keys, so that here every tile's scores tower over those of the
// tiles before it: by less and by more than what float32 holds as a power of two.
TEST_P(PrefillAttentionCuda, MatchesTheReferenceWhenScoresGrowTowardsEarlyKeys) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const HalfType type : {HalfType::kBF16, HalfType::kF16}) {
      for (const float early_keys : {4.0f, 20.0f, 60.0f, 300.0f}) {
        for (const int32_t window : {0, 150}) {
          ExpectMatchesReference({.kernel = kernel,
                                  .type = type,
                                  .head_dim = GetParam(),
                                  .num_heads = 4,
                                  .num_kv_heads = 2,
                                  .query_lengths = {500, 1, 70},
                                  .kv_lengths = {500, 400, 390},
                                  .window = window,
                                  .early_keys = early_keys});
        }
      }
    }
    ExpectMatchesReference({.kernel = kernel,
                            .head_dim = GetParam(),
                            .query_lengths = {300},
                            .kv_lengths = {500},
                            .softcap = 200,
                            .early_keys = 300});
  }
}

TEST_P(PrefillAttentionCuda, RepeatsItselfToTheBit) {
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    PrefillFixture fixture({.kernel = kernel,
                            .head_dim = GetParam(),
                            .num_heads = 8,
                            .num_kv_heads = 2,
                            .query_lengths = {700, 300, 1, 77},
                            .kv_lengths = {900, 300, 400, 100},
                            .num_multiprocessors = 20});
    const std::vector<uint16_t> first = fixture.Run();
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(fixture.Run(i % 2 == 0 ? LaunchOrder::kOverlapped : LaunchOrder::kAfter), first)
          << "run " << i;
    }
  }
}

// Runs `whole`, which has one sequence, then its prompt in chunks beside other sequences.
void ExpectSameBitsInChunks(const PrefillCase& whole, const std::vector<int32_t>& chunks,
                            std::mt19937& random) {
  const std::vector<uint16_t> expected = PrefillFixture(whole).Run();
  const auto row_size = static_cast<size_t>(whole.num_heads * whole.head_dim);
  int32_t done = 0;
  for (const int32_t chunk : chunks) {
    PrefillCase cut = whole;
    cut.block_tokens = 16 << random() % 4;
    cut.num_multiprocessors = 1 + static_cast<int32_t>(random() % 6);
    cut.query_lengths = {chunk};
    cut.kv_lengths = {done + chunk};
    for (uint32_t others = random() % 3; others > 0; --others) {
      cut.query_lengths.push_back(1 + static_cast<int32_t>(random() % 150));
      cut.kv_lengths.push_back(cut.query_lengths.back() + static_cast<int32_t>(random() % 300));
    }
    const std::vector<uint16_t> out = PrefillFixture(cut).Run();
    for (size_t i = 0; i < static_cast<size_t>(chunk) * row_size; ++i) {
      ASSERT_EQ(out[i], expected[static_cast<size_t>(done) * row_size + i])
          << (whole.kernel == PrefillKernel::kSm90 ? "sm90" : "mma") << " type "
          << static_cast<int>(whole.type) << " window " << whole.window << " softcap "
          << whole.softcap << " early_keys " << whole.early_keys << " heads " << whole.num_heads
          << "/" << whole.num_kv_heads << " chunk of " << chunk << " at " << done << ", row "
          << i / row_size << " column " << i % row_size;
    }
    done += chunk;
  }
  ASSERT_EQ(done, whole.query_lengths[0]);
}

TEST_P(PrefillAttentionCuda, GivesARowTheSameBitsHoweverItsPromptIsCut) {
  constexpr int32_t kLength = 460;
  std::mt19937 random(3);
  for (const PrefillKernel kernel : KernelsFor(GetParam())) {
    for (const float early_keys : {0.0f, 20.0f, 300.0f}) {
      for (const int32_t window : {0, 100}) {
        std::vector<int32_t> chunks = {1, 63, 64, 65, 1, 1};
        int32_t left = kLength - 195;
        while (left > 0) {
          chunks.push_back(std::min(left, 1 + static_cast<int32_t>(random() % 160)));
          left -= chunks.back();
        }
        ExpectSameBitsInChunks({.kernel = kernel,
                                .type = random() % 2 == 0 ? HalfType::kBF16 : HalfType::kF16,
                                .head_dim = GetParam(),
                                .num_heads = random() % 2 == 0 ? 4 : 6,
                                .num_kv_heads = 2,
                                .query_lengths = {kLength},
                                .kv_lengths = {kLength},
                                .window = window,
                                .softcap = random() % 3 == 0 ? 30.0f : 0.0f,
                                .early_keys = early_keys},
                               chunks, random);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, PrefillAttentionCuda,
                         ::testing::Values(128, 64, 256, 8, 16, 40, 80, 10));

TEST(PrefillAttentionCudaLaunch, WritesNothingForNoWork) {
  SKIP_WITHOUT_GPU();
  for (const PrefillKernel kernel : {PrefillKernel::kSm90, PrefillKernel::kMma}) {
    PrefillFixture fixture(
        {.kernel = kernel, .head_dim = 128, .query_lengths = {5}, .kv_lengths = {5}});
    const DeviceArray<int32_t> none(std::vector<int32_t>{0});
    fixture.params().num_work = none.data();
    for (const uint16_t x : fixture.Run()) ASSERT_EQ(x, 0xFFFF);
  }
}

TEST(PrefillAttentionCudaLaunch, RefusesWhatItCannotDo) {
  SKIP_WITHOUT_GPU();
  PrefillFixture fixture({.head_dim = 40, .query_lengths = {5}, .kv_lengths = {5}});
  PrefillAttentionParams p = fixture.params();
  EXPECT_EQ(PrefillAttentionSm90(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  KvTensorMap map;
  EXPECT_EQ(MakeKvTensorMap(p.kv, &map), KernelStatus::kUnsupported);
  p.kv.head_dim = 7;
  EXPECT_EQ(PrefillAttentionMma(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.kv.head_dim = 258;
  EXPECT_EQ(PrefillAttentionMma(p, nullptr, LaunchOrder::kAfter), KernelStatus::kUnsupported);
  p.kv.head_dim = 40;
  p.num_heads = 3;
  EXPECT_EQ(PrefillAttentionMma(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p = fixture.params();
  p.q_stride += 1;
  EXPECT_EQ(PrefillAttentionMma(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
  p = fixture.params();
  p.work = nullptr;
  EXPECT_EQ(PrefillAttentionMma(p, nullptr, LaunchOrder::kAfter), KernelStatus::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::testing
