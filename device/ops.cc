#include "device/ops.h"

#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// Checks one operation at a time; remembers what has been written.
class Checker {
 public:
  Checker(const OpList& list, int32_t num_layers)
      : list_(list), num_layers_(num_layers), written_(list.values.size(), false) {}

  absl::Status Check(const Op& op) {
    for (const ValueId id : ValuesOf(op).reads) {
      RETURN_IF_ERROR(CheckKnown(id));
      if (!written_[static_cast<size_t>(id.value)])
        return Wrong("reads a value before it is written");
    }
    for (const ValueId id : ValuesOf(op).writes) {
      RETURN_IF_ERROR(CheckKnown(id));
      written_[static_cast<size_t>(id.value)] = true;
    }
    return std::visit([this](const auto& o) { return CheckShapes(o); }, op);
  }

 private:
  static absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }
  const ValueSpec& Spec(ValueId id) const { return list_.values[static_cast<size_t>(id.value)]; }
  absl::Status CheckKnown(ValueId id) const {
    if (id.value >= 0 && static_cast<size_t>(id.value) < list_.values.size()) {
      return absl::OkStatus();
    }
    return Wrong("names an unknown value");
  }
  absl::Status Expect(ValueId id, ValueRows rows, int64_t cols, absl::string_view what) const {
    const ValueSpec& spec = Spec(id);
    if (spec.rows == rows && spec.cols == cols && cols > 0) return absl::OkStatus();
    return Wrong(absl::StrCat(what, " has the wrong shape: ", spec.cols, " columns, not ", cols,
                              spec.rows == rows ? "" : ", and other rows"));
  }
  static absl::Status ExpectWeight(const WeightPtr& weight, WeightRole role, int64_t rows,
                                   int64_t cols, absl::string_view what) {
    if (weight == nullptr) return Wrong(absl::StrCat(what, " is missing"));
    if (weight->role() == role && weight->rows() == rows && weight->cols() == cols) {
      return absl::OkStatus();
    }
    return Wrong(absl::StrCat(what, " has the wrong role or shape: [", weight->rows(), ", ",
                              weight->cols(), "], not [", rows, ", ", cols, "]"));
  }
  absl::Status CheckHeads(int32_t layer, int32_t num_heads, int32_t num_kv_heads,
                          int32_t head_dim) const {
    if (layer < 0 || layer >= num_layers_) return Wrong(absl::StrCat("no layer ", layer));
    if (num_kv_heads < 1 || num_heads < 1 || num_heads % num_kv_heads != 0) {
      return Wrong(absl::StrCat(num_heads, " heads over ", num_kv_heads, " KV heads"));
    }
    if (head_dim < 2 || head_dim % 2 != 0) return Wrong(absl::StrCat("head_dim ", head_dim));
    return absl::OkStatus();
  }

  absl::Status CheckShapes(const EmbedOp& o) const {
    if (o.table == nullptr) return Wrong("table is missing");
    RETURN_IF_ERROR(
        ExpectWeight(o.table, WeightRole::kMatrix, o.table->rows(), Spec(o.out).cols, "table"));
    return Expect(o.out, ValueRows::kTokens, o.table->cols(), "out");
  }
  absl::Status CheckShapes(const AddNormOp& o) const {
    const ValueSpec& spec = Spec(o.residual);
    if (o.out == o.residual || o.out == o.delta) return Wrong("out must not be an input");
    if (o.delta != kNoValue) RETURN_IF_ERROR(Expect(o.delta, spec.rows, spec.cols, "delta"));
    RETURN_IF_ERROR(Expect(o.out, spec.rows, spec.cols, "out"));
    return ExpectWeight(o.gamma, WeightRole::kVector, spec.cols, 1, "gamma");
  }
  absl::Status CheckShapes(const LinearOp& o) const {
    const bool gated = o.epilogue == LinearEpilogue::kSwiglu;
    const ValueSpec& in = Spec(o.in);
    const int64_t cols = Spec(o.out).cols;
    RETURN_IF_ERROR(Expect(o.out, in.rows, cols, "out"));
    RETURN_IF_ERROR(ExpectWeight(o.weight, gated ? WeightRole::kGatedMatrix : WeightRole::kMatrix,
                                 cols, in.cols, "weight"));
    if (o.bias == nullptr) return absl::OkStatus();
    return ExpectWeight(o.bias, gated ? WeightRole::kGatedBias : WeightRole::kBias, cols, 1,
                        "bias");
  }
  absl::Status CheckShapes(const RopeAnglesOp& o) const {
    const int64_t cols = Spec(o.out).cols;
    RETURN_IF_ERROR(Expect(o.out, ValueRows::kTokens, cols, "out"));
    return ExpectWeight(o.inverse_frequencies, WeightRole::kVector, cols / 2, 1,
                        "inverse_frequencies");
  }
  absl::Status CheckShapes(const RopeKvWriteOp& o) const {
    RETURN_IF_ERROR(CheckHeads(o.layer, o.num_heads, o.num_kv_heads, o.head_dim));
    RETURN_IF_ERROR(Expect(o.qkv, ValueRows::kTokens,
                           int64_t{o.num_heads + 2 * o.num_kv_heads} * o.head_dim, "qkv"));
    RETURN_IF_ERROR(Expect(o.angles, ValueRows::kTokens, o.head_dim, "angles"));
    return Expect(o.q, ValueRows::kTokens, int64_t{o.num_heads} * o.head_dim, "q");
  }
  absl::Status CheckShapes(const AttentionOp& o) const {
    RETURN_IF_ERROR(CheckHeads(o.layer, o.num_heads, o.num_kv_heads, o.head_dim));
    RETURN_IF_ERROR(Expect(o.q, ValueRows::kTokens, int64_t{o.num_heads} * o.head_dim, "q"));
    return Expect(o.out, ValueRows::kTokens, int64_t{o.num_heads} * o.head_dim, "out");
  }
  absl::Status CheckShapes(const GatherRowsOp& o) const {
    RETURN_IF_ERROR(Expect(o.in, ValueRows::kTokens, Spec(o.in).cols, "in"));
    return Expect(o.out, ValueRows::kSamples, Spec(o.in).cols, "out");
  }
  absl::Status CheckShapes(const SampleOp& o) const {
    RETURN_IF_ERROR(Expect(o.logits, ValueRows::kSamples, Spec(o.logits).cols, "logits"));
    if (o.vocab >= 1 && o.vocab <= Spec(o.logits).cols) return absl::OkStatus();
    return Wrong(absl::StrCat("vocabulary of ", o.vocab, " for ", Spec(o.logits).cols, " logits"));
  }

  const OpList& list_;
  const int32_t num_layers_;
  std::vector<bool> written_;
};

}  // namespace

absl::string_view OpName(const Op& op) {
  return std::visit(
      Overloaded{[](const EmbedOp&) { return "Embed"; }, [](const AddNormOp&) { return "AddNorm"; },
                 [](const LinearOp&) { return "Linear"; },
                 [](const RopeAnglesOp&) { return "RopeAngles"; },
                 [](const RopeKvWriteOp&) { return "RopeKvWrite"; },
                 [](const AttentionOp&) { return "Attention"; },
                 [](const GatherRowsOp&) { return "GatherRows"; },
                 [](const SampleOp&) { return "Sample"; }},
      op);
}

OpValues ValuesOf(const Op& op) {
  return std::visit(Overloaded{
                        [](const EmbedOp& o) { return OpValues{{}, {o.out}}; },
                        [](const AddNormOp& o) {
                          OpValues v{{o.residual}, {o.residual, o.out}};
                          if (o.delta != kNoValue) v.reads.push_back(o.delta);
                          return v;
                        },
                        [](const LinearOp& o) { return OpValues{{o.in}, {o.out}}; },
                        [](const RopeAnglesOp& o) { return OpValues{{}, {o.out}}; },
                        [](const RopeKvWriteOp& o) { return OpValues{{o.qkv, o.angles}, {o.q}}; },
                        [](const AttentionOp& o) { return OpValues{{o.q}, {o.out}}; },
                        [](const GatherRowsOp& o) { return OpValues{{o.in}, {o.out}}; },
                        [](const SampleOp& o) { return OpValues{{o.logits}, {}}; },
                    },
                    op);
}

absl::Status CheckOps(const OpList& list, int32_t num_layers) {
  Checker checker(list, num_layers);
  for (size_t i = 0; i < list.ops.size(); ++i) {
    const absl::Status status = checker.Check(list.ops[i]);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("operation ", i, " (", OpName(list.ops[i]), ")"));
    }
  }
  if (list.ops.empty() || !std::holds_alternative<SampleOp>(list.ops.back())) {
    return absl::InvalidArgumentError("the last operation is not Sample");
  }
  return absl::OkStatus();
}

}  // namespace baton
