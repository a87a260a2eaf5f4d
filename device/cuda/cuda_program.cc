#include "device/cuda/cuda_program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "device/program_checks.h"

namespace baton {
namespace {

// A step is polled without rest for so long, which is most decode steps, then with naps: the thread
// has nothing else to do, and an interrupt takes as long as a small step.
constexpr Duration kSpinLimit = std::chrono::milliseconds(20);
// Time to choose algorithms for products at load, when no earlier start has written them down.
constexpr Duration kTuningLimit = std::chrono::seconds(4);
constexpr Duration kNap = std::chrono::microseconds(50);

const AttentionOp* FirstAttention(const OpList& list) {
  for (const Op& op : list.ops) {
    if (const auto* attention = std::get_if<AttentionOp>(&op)) return attention;
  }
  return nullptr;
}

int32_t RoundUp(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

}  // namespace

int32_t DecodeStepRows(int32_t sequences) {
  if (sequences <= 8) return sequences;
  if (sequences <= 64) return RoundUp(sequences, 8);
  if (sequences <= 128) return RoundUp(sequences, 16);
  if (sequences <= 256) return RoundUp(sequences, 32);
  return RoundUp(sequences, 64);
}

absl::StatusOr<std::unique_ptr<CudaProgram>> CudaProgram::Create(const OpList& list,
                                                                 absl::Span<const int32_t> buckets,
                                                                 const ProgramLimits& limits,
                                                                 const KvPool& kv,
                                                                 CudaContext& context) {
  RETURN_IF_ERROR(context.failure());
  RETURN_IF_ERROR(context.Enter());
  RETURN_IF_ERROR(CheckProgram(list, buckets, limits, kv.layout()));
  // Rows of padding need room too.
  ProgramLimits padded = limits;
  padded.sequences_max = DecodeStepRows(limits.sequences_max);
  padded.samples_max = std::max(limits.samples_max, padded.sequences_max);
  auto program = std::make_unique<CudaProgram>(Private{}, list, buckets, padded, context);
  if (const AttentionOp* attention = FirstAttention(program->list_)) {
    ASSIGN_OR_RETURN(program->attention_,
                     AttentionPlanner::Create(*attention, kv.layout().block_tokens, padded,
                                              context.deterministic()));
  }
  MutexLock lock(context.stream_mutex());
  RETURN_IF_ERROR(program->Allocate(std::max(buckets.back(), padded.sequences_max), kv));
  return program;
}

CudaProgram::CudaProgram(Private, const OpList& list, absl::Span<const int32_t> buckets,
                         const ProgramLimits& limits, CudaContext& context)
    : list_(list), buckets_(buckets.begin(), buckets.end()), limits_(limits), context_(context) {}

CudaProgram::~CudaProgram() {
  cudaSetDevice(context_.ordinal());
  // Steps in flight still write to what is freed next. A lost GPU answers with its error.
  {
    MutexLock lock(context_.stream_mutex());
    cudaStreamSynchronize(context_.stream());
  }
  for (auto& [rows, graph] : graphs_) {
    if (graph.executable != nullptr) cudaGraphExecDestroy(graph.executable);
  }
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) cudaEventDestroy(slot.done);
  }
}

absl::Status CudaProgram::Allocate(int32_t tokens_max, const KvPool& kv) {
  ASSIGN_OR_RETURN(launcher_, StepLauncher::Create(list_, tokens_max, limits_, kv,
                                                   attention_ ? &*attention_ : nullptr, context_));
  StepCounts counts{
      .tokens = tokens_max, .sequences = limits_.sequences_max, .samples = limits_.samples_max};
  if (attention_) {
    counts = attention_->CountsMax(tokens_max);
    counts.samples = limits_.samples_max;
  }
  const int64_t blocks_of_sequence = limits_.context_tokens_max / kv.layout().block_tokens + 1;
  block_bytes_max_ =
      StepBlockBytes(counts, static_cast<size_t>(limits_.sequences_max * blocks_of_sequence));
  ASSIGN_OR_RETURN(
      block_, context_.memory().Allocate(static_cast<int64_t>(block_bytes_max_), "activations"));
  workspace_bytes_ = launcher_->bytes() + static_cast<int64_t>(block_bytes_max_);
  for (Slot& slot : slots_) {
    ASSIGN_OR_RETURN(slot.block, AllocatePinned(static_cast<int64_t>(block_bytes_max_)));
    ASSIGN_OR_RETURN(slot.results,
                     AllocatePinned(limits_.samples_max * int64_t{sizeof(kernels::SampleResult)}));
    RETURN_IF_ERROR(
        context_.Check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "an event"));
    ASSIGN_OR_RETURN(slot.kv_marks, KvMarks::Create(kv.layout().num_layers, context_));
  }
  RETURN_IF_ERROR(launcher_->TuneProducts(tokens_max, kTuningLimit));
  // What was zeroed is zero before the first step of any stream.
  return context_.Check(cudaStreamSynchronize(context_.stream()), "preparing a program");
}

bool CudaProgram::IsDecodeStep(const StepMeta& meta) const {
  const size_t sequences = meta.query_starts.size() - 1;
  return attention_ && meta.positions.size() == sequences && meta.sample_rows.size() == sequences &&
         static_cast<int32_t>(sequences) <= limits_.sequences_max;
}

absl::Status CudaProgram::EnqueueStep(const StepMeta& meta, Slot& slot) {
  const bool decode = IsDecodeStep(meta);
  StepRun run;
  if (decode) {
    run.counts = attention_->DecodeCounts(
        DecodeStepRows(static_cast<int32_t>(meta.query_starts.size()) - 1));
  } else {
    run.counts = {.tokens = static_cast<int32_t>(meta.positions.size()),
                  .sequences = static_cast<int32_t>(meta.query_starts.size()) - 1,
                  .samples = static_cast<int32_t>(meta.sample_rows.size())};
  }
  if (attention_) {
    attention_->Plan(meta, &run.counts, &run.decode_attention, &run.prefill_attention);
  }
  const size_t bytes = StepBlockBytes(run.counts, meta.block_tables.size());
  CHECK_LE(bytes, block_bytes_max_) << "a step beyond the program's limits";
  WriteStepBlock(meta, run.counts, slot.block.get());
  if (attention_) attention_->Write(run.counts, slot.block.get());
  run.block = block_.get();
  RETURN_IF_ERROR(context_.Check(cudaMemcpyAsync(block_.get(), slot.block.get(), bytes,
                                                 cudaMemcpyHostToDevice, context_.stream()),
                                 "copying a step's metadata"));
  if (decode) {
    RETURN_IF_ERROR(LaunchDecode(run));
  } else {
    if (meta.report_kv_layers) run.kv_marks = slot.kv_marks.get();
    RETURN_IF_ERROR(launcher_->Launch(run));
    stats_.kernel_launches += static_cast<uint64_t>(launcher_->launches());
  }
  return CopyResults(slot);
}

absl::Status CudaProgram::LaunchDecode(const StepRun& run) {
  Graph& graph = graphs_[run.counts.tokens];
  const bool first = !std::exchange(graph.launched, true);
  // No capture while a communicator changes: this step does without, a later one captures.
  if (first || (graph.executable == nullptr && !context_.capture_gate().TryBeginCapture())) {
    RETURN_IF_ERROR(launcher_->Launch(run));
    stats_.kernel_launches += static_cast<uint64_t>(launcher_->launches());
    return absl::OkStatus();
  }
  if (graph.executable == nullptr) {
    const absl::Status captured = Capture(run, graph);
    context_.capture_gate().EndCapture();
    RETURN_IF_ERROR(captured);
  }
  stats_.kernel_launches += static_cast<uint64_t>(graph.launches);
  ++stats_.graph_launches;
  return context_.Check(cudaGraphLaunch(graph.executable, context_.stream()), "launching a graph");
}

absl::Status CudaProgram::Capture(const StepRun& run, Graph& graph) {
  RETURN_IF_ERROR(context_.Check(
      cudaStreamBeginCapture(context_.stream(), cudaStreamCaptureModeThreadLocal), "capture"));
  const absl::Status launched = launcher_->Launch(run);
  cudaGraph_t captured = nullptr;
  const absl::Status ended =
      context_.Check(cudaStreamEndCapture(context_.stream(), &captured), "capture");
  absl::Status status = launched.ok() ? ended : launched;
  if (status.ok()) {
    status = context_.Check(cudaGraphInstantiate(&graph.executable, captured, 0),
                            "instantiating a graph");
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  graph.launches = launcher_->launches();
  ++stats_.graphs;
  return status;
}

absl::Status CudaProgram::CopyResults(Slot& slot) {
  if (slot.num_samples > 0) {
    const auto samples = static_cast<size_t>(slot.num_samples);
    RETURN_IF_ERROR(context_.Check(cudaMemcpyAsync(slot.results.get(), launcher_->results(),
                                                   samples * sizeof(kernels::SampleResult),
                                                   cudaMemcpyDeviceToHost, context_.stream()),
                                   "copying samples"));
    if (slot.return_logits) {
      const auto row_bytes = static_cast<size_t>(launcher_->logits_cols()) * sizeof(float);
      if (slot.logits == nullptr) {
        ASSIGN_OR_RETURN(slot.logits,
                         AllocatePinned(limits_.samples_max * static_cast<int64_t>(row_bytes)));
      }
      RETURN_IF_ERROR(context_.Check(
          cudaMemcpy2DAsync(slot.logits.get(), row_bytes, launcher_->logits(),
                            static_cast<size_t>(launcher_->logits_stride()) * sizeof(float),
                            row_bytes, samples, cudaMemcpyDeviceToHost, context_.stream()),
          "copying logits"));
    }
  }
  return context_.Check(cudaEventRecord(slot.done, context_.stream()), "recording an event");
}

absl::StatusOr<DeviceTicket> CudaProgram::Enqueue(int bucket, const StepMeta& meta) {
  CHECK(bucket >= 0 && static_cast<size_t>(bucket) < buckets_.size()) << bucket;
  CHECK_LT(next_ticket_ - oldest_ticket_, static_cast<DeviceTicket>(kInFlightMax));
  CHECK(!meta.positions.empty() &&
        static_cast<int32_t>(meta.positions.size()) <= buckets_[static_cast<size_t>(bucket)]);
  RETURN_IF_ERROR(context_.failure());
  RETURN_IF_ERROR(context_.Enter());
  Slot& slot = slots_[next_ticket_ % kInFlightMax];
  slot.num_samples = static_cast<int32_t>(meta.sample_rows.size());
  slot.return_logits = meta.return_logits;
  slot.kv_marks->Clear();
  slot.waited_since = kNever;
  absl::Status status;
  {
    MutexLock lock(context_.stream_mutex());
    status = EnqueueStep(meta, slot);
  }
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(context_.name(), ": ", status.message()));
  }
  ++stats_.steps;
  return next_ticket_++;
}

absl::StatusOr<StepOutputs> CudaProgram::Wait(DeviceTicket ticket, Duration timeout) {
  CHECK_EQ(ticket, oldest_ticket_);
  CHECK_LT(ticket, next_ticket_);
  RETURN_IF_ERROR(context_.Enter());
  Slot& slot = slots_[ticket % kInFlightMax];
  const Clock* clock = Clock::Real();
  const TimePoint start = clock->Now();
  // A loop waits in slices.
  slot.waited_since = std::min(slot.waited_since, start);
  while (true) {
    const cudaError_t error = cudaEventQuery(slot.done);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      ++oldest_ticket_;
      return context_.Check(error, "a step");
    }
    const TimePoint now = clock->Now();
    if (now - start >= timeout) return absl::DeadlineExceededError("the step is still running");
    if (now - slot.waited_since > kSpinLimit) {
      MutexLock lock(nap_mutex_);
      nap_.WaitFor(nap_mutex_, kNap);  // Nobody ends it.
    }
  }
  ++oldest_ticket_;
  StepOutputs outputs;
  const auto* results = reinterpret_cast<const kernels::SampleResult*>(slot.results.get());
  outputs.samples.assign(results, results + slot.num_samples);
  if (slot.return_logits) {
    const auto* logits = reinterpret_cast<const float*>(slot.logits.get());
    outputs.logits.assign(logits, logits + slot.num_samples * launcher_->logits_cols());
  }
  return outputs;
}

int32_t CudaProgram::KvLayersReady(DeviceTicket ticket) {
  CHECK(ticket == oldest_ticket_ && ticket < next_ticket_) << ticket;
  if (!context_.Enter().ok()) return 0;
  return slots_[ticket % kInFlightMax].kv_marks->LayersReady();
}

}  // namespace baton
