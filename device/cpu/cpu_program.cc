#include "device/cpu/cpu_program.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "device/cpu/cpu_weight.h"
#include "device/program_checks.h"
#include "kernels/linear/linear.h"

namespace baton {
namespace {

// Multiply-adds below which waking helpers costs more than it gives (about 50 us of one thread).
constexpr int64_t kHelpersMinWork = 1'000'000;

size_t ScratchBytes(const OpList& list) {
  size_t bytes = kernels::LinearScratchFloats() * sizeof(float);
  for (const Op& op : list.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) {
      const int32_t group = attention->num_heads / attention->num_kv_heads;
      bytes = std::max(bytes,
                       sizeof(float) * kernels::AttentionScratchFloats(group, attention->head_dim));
    } else if (const auto* sample = std::get_if<SampleOp>(&op)) {
      bytes = std::max(bytes, kernels::SampleScratchBytes(sample->vocab));
    }
  }
  constexpr size_t kPage = 4096;  // Threads share no line, and no page.
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuProgram>> CpuProgram::Create(
    const OpList& list, absl::Span<const int32_t> buckets, const ProgramLimits& limits,
    const KvPool& kv, CpuMemory& memory, ThreadPool& pool,
    BoundedQueue<std::function<void()>>& queue) {
  RETURN_IF_ERROR(CheckProgram(list, buckets, limits, kv.layout()));
  auto program = std::make_unique<CpuProgram>(Private{}, list, buckets, limits, kv, pool, queue);
  RETURN_IF_ERROR(program->Allocate(memory));
  program->BuildStages();
  return program;
}

CpuProgram::CpuProgram(Private, const OpList& list, absl::Span<const int32_t> buckets,
                       const ProgramLimits& limits, const KvPool& kv, ThreadPool& pool,
                       BoundedQueue<std::function<void()>>& queue)
    : list_(list),
      buckets_(buckets.begin(), buckets.end()),
      limits_(limits),
      kv_(kv),
      pool_(pool),
      queue_(queue) {}

CpuProgram::~CpuProgram() {
  MutexLock lock(mutex_);
  for (DeviceTicket ticket = oldest_ticket_; ticket < next_ticket_; ++ticket) {
    // Bounded: the executor runs every step it has accepted.
    while (!slots_[ticket % kInFlightMax].done) {
      step_done_.WaitFor(mutex_, std::chrono::seconds(1));
    }
  }
}

absl::Status CpuProgram::Allocate(CpuMemory& memory) {
  int64_t activation_bytes = 0;
  std::vector<int64_t> row_bytes;
  for (const ValueSpec& spec : list_.values)
    row_bytes.push_back(spec.cols * int64_t{sizeof(float)});
  for (const int32_t bucket : buckets_) {
    plans_.push_back(PlanWorkspace(list_, bucket, limits_.samples_max, row_bytes));
    activation_bytes = std::max(activation_bytes, plans_.back().bytes);
  }
  constexpr int64_t kPage = 4096;
  activation_bytes = (activation_bytes + kPage - 1) / kPage * kPage;
  scratch_bytes_ = ScratchBytes(list_);
  workspace_bytes_ = activation_bytes + static_cast<int64_t>(scratch_bytes_) * pool_.num_threads();
  ASSIGN_OR_RETURN(workspace_, memory.Allocate(workspace_bytes_, "activations"));
  scratch_ = workspace_.get() + activation_bytes;
  token_ids_.resize(static_cast<size_t>(buckets_.back()));
  last_samples_.assign(static_cast<size_t>(limits_.samples_max), 0);
  return absl::OkStatus();
}

void CpuProgram::BuildStages() {
  attention_tokens_ = buckets_.back();
  for (const Op& op : list_.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) {
      const int32_t group = attention->num_heads / attention->num_kv_heads;
      attention_tokens_ = std::min(attention_tokens_, kernels::AttentionWorkTokens(group));
    } else if (const auto* linear = std::get_if<LinearOp>(&op)) {
      weight_elements_ += linear->weight->rows() * linear->weight->cols();
    } else if (const auto* sample = std::get_if<SampleOp>(&op)) {
      logits_ = sample->logits;
    }
  }
  for (const Op& op : list_.ops) {
    std::visit([this](const auto& o) { Build(o); }, op);
  }
}

void CpuProgram::AddStage(ItemCount items, std::function<void(int32_t, int)> run) {
  item_counts_.push_back(std::move(items));
  stages_.push_back({std::move(run), 0});
}

float* CpuProgram::ValueData(ValueId id) const {
  const WorkspacePlan& plan = plans_[static_cast<size_t>(step_->bucket)];
  return reinterpret_cast<float*>(workspace_.get() + plan.offsets[static_cast<size_t>(id.value)]);
}

int64_t CpuProgram::NumRows(ValueRows rows) const {
  const StepMeta& meta = step_->meta;
  return static_cast<int64_t>(rows == ValueRows::kTokens ? meta.positions.size()
                                                         : meta.sample_rows.size());
}

int64_t CpuProgram::NumRows(ValueId id) const {
  return NumRows(list_.values[static_cast<size_t>(id.value)].rows);
}

kernels::PagedKvLayer CpuProgram::KvLayer(int32_t layer) const {
  const KvLayout& layout = kv_.layout();
  int32_t log2 = 0;
  while ((1 << log2) < layout.block_tokens) ++log2;
  return {.base = reinterpret_cast<float*>(kv_.base()) + layer * layout.layer_stride(),
          .block_stride = layout.block_stride(),
          .head_stride = layout.head_stride(),
          .value_offset = layout.value_offset(),
          .block_tokens_log2 = log2,
          .head_dim = layout.head_dim};
}

absl::StatusOr<DeviceTicket> CpuProgram::Enqueue(int bucket, const StepMeta& meta) {
  const auto num_tokens = static_cast<int64_t>(meta.positions.size());
  CHECK(bucket >= 0 && static_cast<size_t>(bucket) < buckets_.size()) << "bucket " << bucket;
  CHECK(num_tokens >= 1 && num_tokens <= buckets_[static_cast<size_t>(bucket)]);
  CHECK_EQ(meta.token_source.size(), meta.positions.size());
  CHECK_EQ(meta.kv_slots.size(), meta.positions.size());
  CHECK(!meta.query_starts.empty() && meta.query_starts.back() == num_tokens);
  CHECK_EQ(meta.block_table_starts.size(), meta.query_starts.size());
  CHECK_LE(static_cast<int64_t>(meta.query_starts.size()), int64_t{limits_.sequences_max} + 1);
  CHECK_LE(static_cast<int64_t>(meta.sample_rows.size()), int64_t{limits_.samples_max});
  CHECK_EQ(meta.sampling.size(), meta.sample_rows.size());
  CHECK_LT(next_ticket_ - oldest_ticket_, DeviceTicket{kInFlightMax});

  Slot& slot = slots_[next_ticket_ % kInFlightMax];
  slot.bucket = bucket;
  slot.meta = meta;
  slot.kv_layers_ready = 0;
  {
    MutexLock lock(mutex_);
    slot.done = false;
  }
  if (!queue_.TryPush([this, &slot] { ExecuteStep(slot); })) {
    return absl::UnavailableError("the CPU device is shut down or its queue is full");
  }
  return next_ticket_++;
}

absl::StatusOr<StepOutputs> CpuProgram::Wait(DeviceTicket ticket, Duration timeout) {
  CHECK_EQ(ticket, oldest_ticket_);
  CHECK_LT(ticket, next_ticket_);
  Slot& slot = slots_[ticket % kInFlightMax];
  const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), timeout);
  MutexLock lock(mutex_);
  while (!slot.done) {
    const TimePoint now = Clock::Real()->Now();
    if (now >= deadline) return absl::DeadlineExceededError("the step is still running");
    step_done_.WaitFor(mutex_, std::min<Duration>(deadline - now, std::chrono::hours(1)));
  }
  ++oldest_ticket_;
  return std::move(slot.outputs);
}

int32_t CpuProgram::KvLayersReady(DeviceTicket ticket) {
  CHECK(ticket == oldest_ticket_ && ticket < next_ticket_) << ticket;
  return slots_[ticket % kInFlightMax].kv_layers_ready.load(std::memory_order_acquire);
}

void CpuProgram::PlanAttention() {
  const StepMeta& meta = step_->meta;
  attention_work_.clear();
  for (size_t s = 0; s + 1 < meta.query_starts.size(); ++s) {
    const int32_t* table =
        meta.block_tables.data() + static_cast<size_t>(meta.block_table_starts[s]);
    for (int32_t row = meta.query_starts[s]; row < meta.query_starts[s + 1];
         row += attention_tokens_) {
      attention_work_.push_back(
          {.token_begin = row,
           .num_tokens = std::min(attention_tokens_, meta.query_starts[s + 1] - row),
           .first_position = meta.positions[static_cast<size_t>(row)],
           .kv_head = 0,
           .block_table = table});
    }
  }
  // The longest first, so that no thread is left with a long one at the end.
  const auto cost = [](const kernels::AttentionWork& w) {
    return int64_t{w.num_tokens} * (w.first_position + w.num_tokens);
  };
  std::sort(attention_work_.begin(), attention_work_.end(),
            [&](const kernels::AttentionWork& a, const kernels::AttentionWork& b) {
              return cost(a) != cost(b) ? cost(a) > cost(b) : a.token_begin < b.token_begin;
            });
}

int64_t CpuProgram::WorkOfStep() const {
  int64_t work = weight_elements_ * NumRows(ValueRows::kTokens);
  for (const kernels::AttentionWork& w : attention_work_) {
    work += int64_t{w.num_tokens} * (w.first_position + w.num_tokens) * kv_.layout().head_dim *
            kv_.layout().num_kv_heads * kv_.layout().num_layers;
  }
  return work;
}

void CpuProgram::PrepareStep(Slot& slot) {
  step_ = &slot;
  const StepMeta& meta = slot.meta;
  for (size_t i = 0; i < meta.token_source.size(); ++i) {
    const int32_t source = meta.token_source[i];
    const auto row = static_cast<size_t>(-1 - int64_t{source});
    CHECK(source >= 0 || row < last_samples_.size()) << "token source " << source;
    token_ids_[i] = source >= 0 ? source : last_samples_[row];
  }
  slot.outputs.samples.assign(meta.sample_rows.size(), kernels::SampleResult());
  slot.outputs.logits.clear();
  PlanAttention();
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i].num_items = item_counts_[i]();
}

void CpuProgram::ExecuteStep(Slot& slot) {
  PrepareStep(slot);
  pool_.Run(stages_, WorkOfStep() >= kHelpersMinWork);
  for (size_t i = 0; i < slot.outputs.samples.size(); ++i) {
    last_samples_[i] = slot.outputs.samples[i].token;
  }
  if (slot.meta.return_logits) {
    const float* logits = ValueData(logits_);
    const int64_t cols = list_.values[static_cast<size_t>(logits_.value)].cols;
    slot.outputs.logits.assign(logits, logits + NumRows(logits_) * cols);
  }
  step_ = nullptr;
  {
    MutexLock lock(mutex_);
    slot.done = true;
    // Inside the lock: the destructor may free the condition as soon as it sees `done`.
    step_done_.SignalAll();
  }
}

}  // namespace baton
