#include "device/cuda/step_launcher.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_weight.h"
#include "kernels/decode_attention/decode_attention_cuda.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/gated_linear/gated_linear_cuda.h"
#include "kernels/linear/fixed_linear_cuda.h"
#include "kernels/linear/skinny_linear_cuda.h"
#include "kernels/linear/swiglu_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rope/rope_cuda.h"
#include "kernels/sampling/sampling_cuda.h"

namespace baton {

using kernels::KernelStatus;
using kernels::LaunchOrder;

namespace {

// Prepare of the same device made it.
const CudaWeight& OnGpu(const WeightPtr& weight) { return static_cast<const CudaWeight&>(*weight); }

bool IsGated(const LinearOp& op) { return op.epilogue == LinearEpilogue::kSwiglu; }
// With many rows one kernel for product and activation; others go to cuBLASLt.
bool IsGatedLinear(const LinearOp& op) { return IsGated(op) && op.bias == nullptr; }

kernels::PagedKv16 PagesOf(const KvPool& kv) {
  const KvLayout& layout = kv.layout();
  int32_t log2 = 0;
  while ((1 << log2) < layout.block_tokens) ++log2;
  return {.base = kv.base(),
          .block_stride = layout.block_stride(),
          .layer_offset = 0,
          .head_stride = layout.head_stride(),
          .value_offset = layout.value_offset(),
          .block_tokens_log2 = log2,
          .head_dim = layout.head_dim,
          .num_kv_heads = layout.num_kv_heads,
          .num_blocks = kv.num_blocks(),
          .type = layout.dtype == DType::kF16 ? kernels::HalfType::kF16 : kernels::HalfType::kBF16};
}

absl::Status CheckWeightType(const WeightPtr& weight, DType type) {
  if (weight == nullptr || weight->role() == WeightRole::kVector || weight->dtype() == type) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("weights in ", DTypeName(weight->dtype()),
                                                 " for a KV pool in ", DTypeName(type)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepLauncher>> StepLauncher::Create(
    const OpList& list, int32_t tokens_max, const ProgramLimits& limits, const KvPool& kv,
    const AttentionPlanner* attention, CudaContext& context) {
  for (const Op& op : list.ops) {
    const DType type = kv.layout().dtype;
    if (const auto* linear = std::get_if<LinearOp>(&op)) {
      RETURN_IF_ERROR(CheckWeightType(linear->weight, type));
      RETURN_IF_ERROR(CheckWeightType(linear->bias, type));
    } else if (const auto* embed = std::get_if<EmbedOp>(&op)) {
      RETURN_IF_ERROR(CheckWeightType(embed->table, type));
    }
  }
  auto launcher = std::make_unique<StepLauncher>(Private{}, list, limits, kv, attention, context);
  ASSIGN_OR_RETURN(launcher->plan_, PlanValues(list, tokens_max, limits.samples_max));
  RETURN_IF_ERROR(launcher->Allocate(tokens_max));
  return launcher;
}

StepLauncher::StepLauncher(Private, const OpList& list, const ProgramLimits& limits,
                           const KvPool& kv, const AttentionPlanner* attention,
                           CudaContext& context)
    : list_(list),
      limits_(limits),
      kv_(kv),
      attention_(attention),
      context_(context),
      kv_pages_(PagesOf(kv)),
      type_(kv_pages_.type),
      skinny_bytes_(kernels::SkinnyLinearWorkspaceBytes(
          context.deterministic() ? kernels::kSkinnyRowsMax : kFewRowsMax, context.num_sms())) {}

absl::Status StepLauncher::Allocate(int32_t tokens_max) {
  const auto allocate = [&](std::shared_ptr<std::byte>& memory, int64_t bytes, bool zero) {
    absl::StatusOr<std::shared_ptr<std::byte>> made =
        context_.memory().Allocate(bytes, "activations");
    if (!made.ok()) return made.status();
    memory = *std::move(made);
    bytes_ += bytes;
    if (!zero || bytes == 0) return absl::OkStatus();
    return context_.Check(
        cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(bytes), context_.stream()), "memset");
  };
  int64_t gated_rows = 0;
  for (const Op& op : list_.ops) {
    if (const auto* linear = std::get_if<LinearOp>(&op)) {
      if (!IsGated(*linear) || IsGatedLinear(*linear)) continue;
      gated_rows = std::max(gated_rows, OnGpu(linear->weight).padded_rows() * int64_t{2});
    } else if (const auto* sample = std::get_if<SampleOp>(&op)) {
      logits_ = sample->logits;
    }
  }
  RETURN_IF_ERROR(allocate(workspace_, plan_.bytes, false));
  RETURN_IF_ERROR(allocate(gated_, gated_rows * tokens_max * 2, false));
  RETURN_IF_ERROR(allocate(skinny_, static_cast<int64_t>(skinny_bytes_), false));
  RETURN_IF_ERROR(
      allocate(skinny_counters_,
               static_cast<int64_t>(kernels::SkinnyLinearCounterBytes(context_.num_sms())), true));
  const int64_t samples = limits_.samples_max;
  RETURN_IF_ERROR(allocate(results_, samples * int64_t{sizeof(kernels::SampleResult)}, true));
  RETURN_IF_ERROR(allocate(last_samples_, samples * int64_t{sizeof(int32_t)}, true));
  if (attention_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(allocate(dispenser_, 2 * int64_t{sizeof(int32_t)}, true));
  if (attention_->has_decode()) {
    const kernels::DecodePlanOptions& decode = attention_->decode();
    RETURN_IF_ERROR(allocate(decode_scratch_,
                             static_cast<int64_t>(kernels::DecodeAttentionWorkspaceBytes(
                                 decode.shape, decode.grid_size, decode.partials_max)),
                             true));
  }
  if (attention_->prefill_kernel() == kernels::PrefillKernel::kSm90) {
    return Check(kernels::MakeKvTensorMap(KvLayer(0), &kv_map_), "tensor map of the KV pool");
  }
  return absl::OkStatus();
}

const kernels::SampleResult* StepLauncher::results() const {
  return reinterpret_cast<const kernels::SampleResult*>(results_.get());
}
const float* StepLauncher::logits() const { return reinterpret_cast<const float*>(Data(logits_)); }
int64_t StepLauncher::logits_stride() const { return Place(logits_).stride; }
int64_t StepLauncher::logits_cols() const {
  return list_.values[static_cast<size_t>(logits_.value)].cols;
}

int32_t StepLauncher::Rows(ValueId id) const {
  return list_.values[static_cast<size_t>(id.value)].rows == ValueRows::kTokens
             ? run_.counts.tokens
             : run_.counts.samples;
}

kernels::PagedKv16 StepLauncher::KvLayer(int32_t layer) const {
  kernels::PagedKv16 pages = kv_pages_;
  pages.layer_offset = kv_.layout().layer_stride() * layer;
  return pages;
}

LaunchOrder StepLauncher::NextOrder() {
  ++launches_;
  return std::exchange(follows_kernel_, true) ? LaunchOrder::kOverlapped : LaunchOrder::kAfter;
}

absl::Status StepLauncher::Check(KernelStatus status, const char* what) {
  return context_.Check(status, what);
}

absl::Status StepLauncher::Launch(const StepRun& run) {
  run_ = run;
  offsets_ = PlanStepBlock(run.counts);
  launches_ = 0;
  follows_kernel_ = false;
  for (const Op& op : list_.ops) {
    RETURN_IF_ERROR(std::visit([this](const auto& o) { return Run(o); }, op));
  }
  return absl::OkStatus();
}

absl::Status StepLauncher::Run(const EmbedOp& op) {
  const CudaWeight& table = OnGpu(op.table);
  return Check(kernels::EmbedCuda({.token_source = Step<int32_t>(offsets_.token_source),
                                   .last_samples = reinterpret_cast<int32_t*>(last_samples_.get()),
                                   .table = table.data(),
                                   .out = reinterpret_cast<float*>(Data(op.out)),
                                   .rows = Rows(op.out),
                                   .n = table.rows(),
                                   .k = table.padded_cols(),
                                   .num_last_samples = limits_.samples_max,
                                   .type = type_},
                                  context_.stream(), NextOrder()),
               "embedding");
}

absl::Status StepLauncher::Run(const AddNormOp& op) {
  if (Rows(op.out) == 0) return absl::OkStatus();
  return Check(kernels::AddNormCuda({.delta = op.delta == kNoValue ? nullptr : Data(op.delta),
                                     .residual = reinterpret_cast<float*>(Data(op.residual)),
                                     .gamma = static_cast<const float*>(OnGpu(op.gamma).data()),
                                     .out = Data(op.out),
                                     .rows = Rows(op.out),
                                     .cols = list_.values[static_cast<size_t>(op.out.value)].cols,
                                     .epsilon = op.epsilon,
                                     .type = type_},
                                    context_.stream(), NextOrder()),
               "normalisation");
}

absl::Status StepLauncher::Run(const LinearOp& op) {
  const int32_t rows = Rows(op.in);
  if (rows == 0) return absl::OkStatus();
  if (rows <= kFewRowsMax) return RunSkinny(op, rows);
  if (!context_.deterministic()) {
    return IsGatedLinear(op) ? RunGatedLinear(op, rows) : RunMatmul(op, rows);
  }
  const CudaWeight& weight = OnGpu(op.weight);
  const bool skinny =
      kernels::SkinnyLinearIsFaster({.rows = rows,
                                     .n = static_cast<int32_t>(weight.padded_rows()),
                                     .k = static_cast<int32_t>(weight.padded_cols()),
                                     .gated = IsGated(op)},
                                    context_.num_sms());
  return skinny ? RunSkinny(op, rows) : RunFixedLinear(op, rows);  // The same bits.
}

absl::Status StepLauncher::RunSkinny(const LinearOp& op, int32_t rows) {
  const CudaWeight& weight = OnGpu(op.weight);
  const ValuePlace& in = Place(op.in);
  const ValuePlace& out = Place(op.out);
  return Check(
      kernels::SkinnyLinear({.x = Data(op.in),
                             .x_stride = in.stride,
                             .w = weight.data(),
                             .bias = op.bias == nullptr ? nullptr : OnGpu(op.bias).data(),
                             .y = Data(op.out),
                             .y_stride = out.stride,
                             .y_is_f32 = out.is_f32,
                             .gated = IsGated(op),
                             .type = type_,
                             .rows = rows,
                             .n = static_cast<int32_t>(weight.padded_rows()),
                             .k = static_cast<int32_t>(weight.padded_cols()),
                             .num_sms = context_.num_sms(),
                             .workspace = skinny_.get(),
                             .workspace_bytes = skinny_bytes_,
                             .counters = reinterpret_cast<uint32_t*>(skinny_counters_.get())},
                            context_.stream(), NextOrder()),
      "product of few rows");
}

absl::Status StepLauncher::RunFixedLinear(const LinearOp& op, int32_t rows) {
  const CudaWeight& weight = OnGpu(op.weight);
  const ValuePlace& in = Place(op.in);
  const ValuePlace& out = Place(op.out);
  return Check(kernels::FixedLinear({.x = Data(op.in),
                                     .x_stride = in.stride,
                                     .w = weight.data(),
                                     .bias = op.bias == nullptr ? nullptr : OnGpu(op.bias).data(),
                                     .y = Data(op.out),
                                     .y_stride = out.stride,
                                     .y_is_f32 = out.is_f32,
                                     .gated = IsGated(op),
                                     .type = type_,
                                     .rows = rows,
                                     .n = static_cast<int32_t>(weight.padded_rows()),
                                     .k = static_cast<int32_t>(weight.padded_cols()),
                                     .num_sms = context_.num_sms()},
                                    context_.stream(), NextOrder()),
               "product of many rows");
}

absl::Status StepLauncher::RunGatedLinear(const LinearOp& op, int32_t rows) {
  const CudaWeight& weight = OnGpu(op.weight);
  const ValuePlace& in = Place(op.in);
  const ValuePlace& out = Place(op.out);
  return Check(kernels::GatedLinear({.x = Data(op.in),
                                     .x_stride = in.stride,
                                     .w = weight.data(),
                                     .y = Data(op.out),
                                     .y_stride = out.stride,
                                     .type = type_,
                                     .rows = rows,
                                     .n = static_cast<int32_t>(weight.padded_rows()),
                                     .k = static_cast<int32_t>(weight.padded_cols()),
                                     .num_sms = context_.num_sms()},
                                    context_.stream(), NextOrder()),
               "gated product");
}

absl::Status StepLauncher::RunMatmul(const LinearOp& op, int32_t rows) {
  const CudaWeight& weight = OnGpu(op.weight);
  const ValuePlace& in = Place(op.in);
  const ValuePlace& out = Place(op.out);
  const bool gated = IsGated(op);
  const cuda::MatmulShape shape = MatmulShapeOf(op);
  NextOrder();  // cuBLASLt has no say in it.
  RETURN_IF_ERROR(
      context_.matmul().Run({.shape = shape,
                             .rows = rows,
                             .x = Data(op.in),
                             .x_stride = in.stride,
                             .w = weight.data(),
                             .bias = op.bias == nullptr ? nullptr : OnGpu(op.bias).data(),
                             .y = gated ? gated_.get() : Data(op.out),
                             .y_stride = gated ? shape.n : out.stride},
                            context_.stream()));
  if (!gated) return absl::OkStatus();
  return Check(kernels::Swiglu({.x = gated_.get(),
                                .x_stride = shape.n,
                                .y = Data(op.out),
                                .y_stride = out.stride,
                                .rows = rows,
                                .n = static_cast<int32_t>(weight.padded_rows()),
                                .type = type_},
                               context_.stream(), NextOrder()),
               "gated activation");
}

cuda::MatmulShape StepLauncher::MatmulShapeOf(const LinearOp& op) const {
  const CudaWeight& weight = OnGpu(op.weight);
  return {.n = static_cast<int32_t>(weight.padded_rows() * (IsGated(op) ? 2 : 1)),
          .k = static_cast<int32_t>(weight.padded_cols()),
          .type = type_,
          .y_is_f32 = Place(op.out).is_f32,
          .bias = op.bias != nullptr};
}

absl::Status StepLauncher::TuneProducts(int32_t tokens_max, Duration budget) {
  if (context_.deterministic()) return absl::OkStatus();
  std::vector<std::pair<const LinearOp*, int32_t>> products;  // One of each shape, and its rows.
  for (const Op& op : list_.ops) {
    const auto* linear = std::get_if<LinearOp>(&op);
    if (linear == nullptr || IsGatedLinear(*linear)) continue;
    const bool known = std::any_of(products.begin(), products.end(), [&](const auto& product) {
      return MatmulShapeOf(*product.first) == MatmulShapeOf(*linear);
    });
    const bool samples =
        list_.values[static_cast<size_t>(linear->in.value)].rows == ValueRows::kSamples;
    const int32_t rows_max = samples ? limits_.samples_max : tokens_max;
    if (!known && rows_max > kFewRowsMax) products.emplace_back(linear, rows_max);
  }
  for (const auto& [linear, rows_max] : products) {
    RETURN_IF_ERROR(context_.matmul().Prepare(
        MatmulShapeOf(*linear), rows_max, OnGpu(linear->weight).data(),
        budget / static_cast<int64_t>(products.size()), context_.stream()));
  }
  context_.matmul().WriteCache();
  return absl::OkStatus();
}

absl::Status StepLauncher::Run(const RopeAnglesOp& op) {
  const CudaWeight& frequencies = OnGpu(op.inverse_frequencies);
  return Check(
      kernels::RopeAnglesCuda({.positions = Step<int32_t>(offsets_.positions),
                               .inverse_frequencies = static_cast<const float*>(frequencies.data()),
                               .out = reinterpret_cast<float*>(Data(op.out)),
                               .rows = Rows(op.out),
                               .half = frequencies.rows(),
                               .scale = op.scale},
                              context_.stream(), NextOrder()),
      "rotary angles");
}

absl::Status StepLauncher::Run(const RopeKvWriteOp& op) {
  RETURN_IF_ERROR(
      Check(kernels::RopeKvWriteCuda({.qkv = Data(op.qkv),
                                      .angles = reinterpret_cast<const float*>(Data(op.angles)),
                                      .slots = Step<int64_t>(offsets_.kv_slots),
                                      .q = Data(op.q),
                                      .kv = KvLayer(op.layer),
                                      .rows = Rows(op.q),
                                      .num_heads = op.num_heads},
                                     context_.stream(), NextOrder()),
            "rotary embedding"));
  if (run_.kv_marks == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool event, run_.kv_marks->Record(op.layer));
  if (event) follows_kernel_ = false;
  return absl::OkStatus();
}

absl::Status StepLauncher::Run(const AttentionOp& op) {
  const int64_t stride = Place(op.q).stride;
  if (run_.decode_attention) {
    const kernels::DecodePlanOptions& decode = attention_->decode();
    RETURN_IF_ERROR(
        Check(kernels::DecodeAttention({.q = Data(op.q),
                                        .q_stride = stride,
                                        .out = Data(op.out),
                                        .out_stride = Place(op.out).stride,
                                        .kv = KvLayer(op.layer),
                                        .shape = decode.shape,
                                        .scale = op.scale,
                                        // A copy brought it before the step's first kernel.
                                        .metadata_is_early = true,
                                        .items = Step<kernels::DecodeItem>(offsets_.decode_plan),
                                        .block_tables = Step<int32_t>(offsets_.block_tables),
                                        .grid_size = decode.grid_size,
                                        .workspace = decode_scratch_.get(),
                                        .partials_max = decode.partials_max,
                                        .tuning = {}},
                                       context_.stream(), NextOrder()),
              "decode attention"));
  }
  if (!run_.prefill_attention) return absl::OkStatus();
  return Check(
      kernels::PrefillAttention(attention_->prefill_kernel(),
                                {.q = Data(op.q),
                                 .out = Data(op.out),
                                 .q_stride = stride,
                                 .out_stride = Place(op.out).stride,
                                 .kv = KvLayer(op.layer),
                                 .kv_map = kv_map_,
                                 .num_heads = op.num_heads,
                                 .scale = op.scale,
                                 .query_starts = Step<int32_t>(offsets_.query_starts),
                                 .kv_lengths = Step<int32_t>(offsets_.kv_lengths),
                                 .block_table_starts = Step<int32_t>(offsets_.block_table_starts),
                                 .block_tables = Step<int32_t>(offsets_.block_tables),
                                 .work = Step<kernels::PrefillWork>(offsets_.prefill_work),
                                 .num_work = Step<int32_t>(offsets_.num_prefill_work),
                                 .dispenser = reinterpret_cast<int32_t*>(dispenser_.get()),
                                 .num_multiprocessors = context_.num_sms()},
                                context_.stream(), NextOrder()),
      "prefill attention");
}

absl::Status StepLauncher::Run(const GatherRowsOp& op) {
  if (Rows(op.out) == 0) return absl::OkStatus();
  const ValuePlace& in = Place(op.in);
  return Check(kernels::GatherRowsCuda({.in = Data(op.in),
                                        .rows = Step<int32_t>(offsets_.sample_rows),
                                        .out = Data(op.out),
                                        .in_rows = Rows(op.in),
                                        .num_rows = Rows(op.out),
                                        .row_bytes = in.stride * (in.is_f32 ? 4 : 2)},
                                       context_.stream(), NextOrder()),
               "gathering rows");
}

absl::Status StepLauncher::Run(const SampleOp& op) {
  if (Rows(op.logits) == 0) return absl::OkStatus();
  return Check(
      kernels::SampleCuda({.logits = reinterpret_cast<const float*>(Data(op.logits)),
                           .params = Step<kernels::SampleParams>(offsets_.sampling),
                           .results = reinterpret_cast<kernels::SampleResult*>(results_.get()),
                           .last_samples = reinterpret_cast<int32_t*>(last_samples_.get()),
                           .rows = Rows(op.logits),
                           .stride = Place(op.logits).stride,
                           .vocab = op.vocab},
                          context_.stream(), NextOrder()),
      "sampling");
}

}  // namespace baton
