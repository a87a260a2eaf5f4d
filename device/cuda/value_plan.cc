#include "device/cuda/value_plan.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_weight.h"
#include "device/workspace_plan.h"

namespace baton {
namespace {

class TypeChecker {
 public:
  explicit TypeChecker(const OpList& list) : list_(list), is_f32_(list.values.size(), false) {
    for (const Op& op : list.ops) {
      if (const auto* norm = std::get_if<AddNormOp>(&op)) Mark(norm->residual);
      if (const auto* angles = std::get_if<RopeAnglesOp>(&op)) Mark(angles->out);
      if (const auto* sample = std::get_if<SampleOp>(&op)) Mark(sample->logits);
    }
  }

  bool is_f32(ValueId id) const { return is_f32_[static_cast<size_t>(id.value)]; }

  absl::Status Check(const EmbedOp& o) const {
    if (!is_f32(o.out)) return Wrong("its result is no residual stream");
    return Whole(o.out);
  }
  absl::Status Check(const AddNormOp& o) const {
    if (o.delta != kNoValue && is_f32(o.delta)) return Wrong("delta is a residual stream");
    if (is_f32(o.out)) return Wrong("its result is used as a residual stream");
    return Whole(o.residual);
  }
  absl::Status Check(const LinearOp& o) const {
    if (is_f32(o.in)) return Wrong("its input is not normalised");
    if (is_f32(o.out) && o.epilogue != LinearEpilogue::kNone) return Wrong("gated logits");
    return absl::OkStatus();
  }
  absl::Status Check(const RopeAnglesOp&) const { return absl::OkStatus(); }
  absl::Status Check(const RopeKvWriteOp& o) const {
    if (is_f32(o.qkv) || is_f32(o.q)) return Wrong("queries in float32");
    RETURN_IF_ERROR(Whole(o.qkv));
    return Whole(o.q);
  }
  absl::Status Check(const AttentionOp& o) const {
    if (is_f32(o.q) || is_f32(o.out)) return Wrong("queries in float32");
    return Whole(o.out);
  }
  absl::Status Check(const GatherRowsOp& o) const {
    if (is_f32(o.in) != is_f32(o.out)) return Wrong("it would change the type of its rows");
    return absl::OkStatus();
  }
  absl::Status Check(const SampleOp&) const { return absl::OkStatus(); }

 private:
  void Mark(ValueId id) { is_f32_[static_cast<size_t>(id.value)] = true; }
  static absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }
  // Kernels that take no stride need rows without padding.
  absl::Status Whole(ValueId id) const {
    const int64_t cols = list_.values[static_cast<size_t>(id.value)].cols;
    if (cols == PadForCuda(cols)) return absl::OkStatus();
    return Wrong(absl::StrCat("rows of ", cols, " elements, not a multiple of ", kCudaPadding,
                              ", which the CUDA kernels need"));
  }

  const OpList& list_;
  std::vector<bool> is_f32_;
};

}  // namespace

absl::StatusOr<ValuePlan> PlanValues(const OpList& list, int32_t num_tokens, int32_t num_samples) {
  const TypeChecker checker(list);
  for (size_t i = 0; i < list.ops.size(); ++i) {
    const absl::Status status =
        std::visit([&](const auto& op) { return checker.Check(op); }, list.ops[i]);
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("operation ", i, " (", OpName(list.ops[i]), ")"));
    }
  }
  ValuePlan plan;
  std::vector<int64_t> row_bytes;
  for (size_t v = 0; v < list.values.size(); ++v) {
    ValuePlace place;
    place.is_f32 = checker.is_f32(ValueId(static_cast<int32_t>(v)));
    place.stride = PadForCuda(list.values[v].cols);
    plan.values.push_back(place);
    row_bytes.push_back(place.stride * (place.is_f32 ? 4 : 2));
  }
  const WorkspacePlan workspace = PlanWorkspace(list, num_tokens, num_samples, row_bytes);
  for (size_t v = 0; v < plan.values.size(); ++v) plan.values[v].offset = workspace.offsets[v];
  plan.bytes = workspace.bytes;
  return plan;
}

}  // namespace baton
