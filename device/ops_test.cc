// CheckOps accepts a well-formed list and names the operation that is not.
#include "device/ops.h"

#include <functional>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class FakeWeight : public Weight {
 public:
  using Weight::Weight;
  int64_t bytes() const override { return 0; }
};

WeightPtr Make(WeightRole role, int64_t rows, int64_t cols) {
  return std::make_shared<FakeWeight>(role, DType::kF32, rows, cols);
}

// Embedding, norm, projections, attention over one KV head, gated layer, head.
OpList Model() {
  OpList list;
  const ValueId x = list.NewValue(ValueRows::kTokens, 8);
  const ValueId normed = list.NewValue(ValueRows::kTokens, 8);
  const ValueId qkv = list.NewValue(ValueRows::kTokens, 16);
  const ValueId angles = list.NewValue(ValueRows::kTokens, 4);
  const ValueId q = list.NewValue(ValueRows::kTokens, 8);
  const ValueId o = list.NewValue(ValueRows::kTokens, 8);
  const ValueId last = list.NewValue(ValueRows::kSamples, 8);
  const ValueId logits = list.NewValue(ValueRows::kSamples, 20);
  list.ops = {
      EmbedOp{Make(WeightRole::kMatrix, 20, 8), x},
      RopeAnglesOp{Make(WeightRole::kVector, 2, 1), 1, angles},
      AddNormOp{kNoValue, x, Make(WeightRole::kVector, 8, 1), 1e-5f, normed},
      LinearOp{normed, Make(WeightRole::kMatrix, 16, 8), Make(WeightRole::kBias, 16, 1),
               LinearEpilogue::kNone, qkv},
      RopeKvWriteOp{qkv, angles, 0, 2, 1, 4, q},
      AttentionOp{q, 0, 2, 1, 4, 0.5f, o},
      GatherRowsOp{o, last},
      LinearOp{last, Make(WeightRole::kMatrix, 20, 8), nullptr, LinearEpilogue::kNone, logits},
      SampleOp{logits, 18}};
  return list;
}

template <typename T>
T& At(OpList& list, size_t index) {
  return std::get<T>(list.ops[index]);
}

TEST(CheckOps, AcceptsAWellFormedList) {
  const absl::Status status = CheckOps(Model(), 1);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckOps, NamesTheOperationThatIsWrong) {
  struct Case {
    std::function<void(OpList&)> damage;
    const char* message;
  };
  const Case cases[] = {
      {[](OpList& l) { At<EmbedOp>(l, 0).table = nullptr; }, "operation 0 (Embed)"},
      {[](OpList& l) { At<EmbedOp>(l, 0).table = Make(WeightRole::kMatrix, 20, 9); }, "Embed"},
      {[](OpList& l) { At<AddNormOp>(l, 2).residual = ValueId(7); }, "before it is written"},
      {[](OpList& l) { At<AddNormOp>(l, 2).out = ValueId(0); }, "must not be an input"},
      {[](OpList& l) { At<AddNormOp>(l, 2).gamma = Make(WeightRole::kVector, 7, 1); }, "gamma"},
      {[](OpList& l) { At<LinearOp>(l, 3).epilogue = LinearEpilogue::kSwiglu; }, "weight"},
      {[](OpList& l) { At<LinearOp>(l, 3).bias = Make(WeightRole::kBias, 15, 1); }, "bias"},
      {[](OpList& l) { At<LinearOp>(l, 3).out = ValueId(99); }, "unknown value"},
      {[](OpList& l) { At<RopeKvWriteOp>(l, 4).layer = 1; }, "no layer 1"},
      {[](OpList& l) { At<RopeKvWriteOp>(l, 4).head_dim = 3; }, "head_dim 3"},
      {[](OpList& l) { At<AttentionOp>(l, 5).num_kv_heads = 3; }, "2 heads over 3 KV heads"},
      {[](OpList& l) { At<AttentionOp>(l, 5).layer = -1; }, "no layer -1"},
      {[](OpList& l) { At<GatherRowsOp>(l, 6).out = ValueId(5); }, "other rows"},
      {[](OpList& l) { At<SampleOp>(l, 8).vocab = 21; }, "vocabulary of 21"},
      {[](OpList& l) { At<SampleOp>(l, 8).vocab = 0; }, "vocabulary of 0"},
      {[](OpList& l) { l.ops.pop_back(); }, "not Sample"},
  };
  for (const Case& c : cases) {
    OpList list = Model();
    c.damage(list);
    const absl::Status status = CheckOps(list, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  EXPECT_FALSE(CheckOps(OpList(), 1).ok());
}

}  // namespace
}  // namespace baton
