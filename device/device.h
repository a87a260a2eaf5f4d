// What an accelerator must offer to run models: prepare weights, hold KV, compile a list of
// operations and execute it step by step, asynchronously. Implementations: cpu/ (built in) and, as
// a plug-in, cuda/. tests/conformance/device_conformance.h holds for all of them.
//
// A program is compiled once. Enqueue then allocates nothing, waits for nothing, and takes no
// per-step value but the bucket and one block of metadata, so a device may replay a captured graph.
#ifndef BATON_DEVICE_DEVICE_H_
#define BATON_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "device/capture_gate.h"
#include "device/kv_layout.h"
#include "device/ops.h"
#include "device/staging_place.h"
#include "kernels/sampling/sampling.h"

namespace baton {

// Values that a device makes itself, for models without files: bell-shaped, reproducible on that
// device (kernels/random_fill).
struct RandomValues {
  uint64_t seed = 0;
  float deviation = 1;
};

// Rows [rows, cols] of a weight as the model file stores them: row-major, any alignment. Vectors
// and biases have cols = 1.
struct WeightSegment {
  absl::Span<const std::byte> data;
  DType dtype = DType::kF32;  // F32, F16 or BF16
  int64_t rows = 0;
  int64_t cols = 0;
  std::optional<RandomValues> random = std::nullopt;  // Instead of data.
};

// Limits a program is compiled for.
struct ProgramLimits {
  int32_t sequences_max = 0;  // Of a step.
  int32_t samples_max = 0;    // Rows sampled from in a step.
  int32_t context_tokens_max = 0;
};

// Everything that differs from step to step. Copied by Enqueue.
// Sequences own consecutive rows: sequence s has rows [query_starts[s], query_starts[s + 1]) and,
// in block_tables, entries [block_table_starts[s], block_table_starts[s + 1]), enough for its last
// position. Positions of a sequence are consecutive, and every earlier position's KV is in the
// pool.
struct StepMeta {
  // [num_tokens]. >= 0: a token id. < 0: the token drawn for sample row -1 - x of the step enqueued
  // before this one on the same program.
  std::vector<int32_t> token_source;
  std::vector<int32_t> positions;           // [num_tokens]
  std::vector<int64_t> kv_slots;            // [num_tokens], block * block_tokens + offset in block
  std::vector<int32_t> query_starts;        // [num_sequences + 1]
  std::vector<int32_t> block_table_starts;  // [num_sequences + 1]
  std::vector<int32_t> block_tables;        // Block ids.
  std::vector<int32_t> sample_rows;         // [num_samples], rows of tokens
  std::vector<kernels::SampleParams> sampling;  // [num_samples]
  bool return_logits = false;                   // For evaluation and tests.
  bool report_kv_layers = false;                // Program::KvLayersReady is going to be asked.

  void Clear();
};

struct StepOutputs {
  std::vector<kernels::SampleResult> samples;  // [num_samples]
  std::vector<float> logits;                   // [num_samples, cols of the logits], if asked for
};

using DeviceTicket = uint64_t;

// What a program has done since it was compiled. Zeros on devices that launch no kernels.
struct ProgramStats {
  uint64_t steps = 0;
  uint64_t kernel_launches = 0;  // Those inside of graphs included.
  uint64_t graph_launches = 0;
  uint64_t graphs = 0;  // Captured.
};

// A compiled list. Owned by one thread at a time. The destructor waits for steps that are running.
class Program {
 public:
  static constexpr int kInFlightMax = 2;

  virtual ~Program() = default;
  // Token counts, ascending. A step runs in the smallest bucket that holds it.
  virtual absl::Span<const int32_t> buckets() const = 0;
  // Device memory for activations and scratch.
  virtual int64_t workspace_bytes() const = 0;
  virtual ProgramStats stats() const { return {}; }
  // Starts a step with 1 to buckets()[bucket] tokens; steps of all programs of a device run in the
  // order of Enqueue. ERRORS: Unavailable: the device is lost or shut down; nothing was started.
  // REQUIRES: `meta` is consistent and within the limits; fewer than kInFlightMax steps
  // outstanding.
  virtual absl::StatusOr<DeviceTicket> Enqueue(int bucket, const StepMeta& meta) = 0;
  // Waits up to `timeout` for the oldest outstanding step. ERRORS: DeadlineExceeded: not ready yet,
  // call again. Anything else: the step failed and its results are lost.
  virtual absl::StatusOr<StepOutputs> Wait(DeviceTicket ticket, Duration timeout) = 0;
  // Layers [0, n) of the KV that the oldest outstanding step writes are in the pool and may be read
  // (KvGather) although the step still runs. Never falls; may lag, counts in groups where that is
  // cheaper, and stays 0 for a step without report_kv_layers or whose form does not report. Does
  // not wait. An error is left to Wait.
  virtual int32_t KvLayersReady(DeviceTicket ticket) { return 0; }
};

// Thread-safe. Outlives everything made from it.
class Device {
 public:
  virtual ~Device() = default;
  virtual absl::string_view name() const = 0;

  // The type that a model whose weights are stored as `stored` computes in: of its activations, of
  // its KV, and of its matrices where the device converts them.
  virtual DType ComputeType(DType stored) const = 0;
  // Concatenates `segments` by rows (gated roles: exactly two segments of equal shape, gate then
  // up) and brings them to the device, for a program that computes in `compute`. The segments are
  // not needed afterwards. ERRORS: InvalidArgument: shapes or types do not fit; ResourceExhausted
  // naming the sizes.
  virtual absl::StatusOr<WeightPtr> Prepare(absl::Span<const WeightSegment> segments,
                                            WeightRole role, DType compute) = 0;
  // ERRORS: InvalidArgument: layout; ResourceExhausted naming the sizes.
  virtual absl::StatusOr<std::unique_ptr<KvPool>> CreateKvPool(const KvLayout& layout,
                                                               int32_t num_blocks) = 0;
  // `kv` must outlive the program; its type is the one that `list` computes in. ERRORS:
  // InvalidArgument naming the operation; ResourceExhausted naming the sizes.
  virtual absl::StatusOr<std::unique_ptr<Program>> Compile(const OpList& list,
                                                           absl::Span<const int32_t> buckets,
                                                           const ProgramLimits& limits,
                                                           const KvPool& kv) = 0;

  // Copies ranges of a pool of this device to staging and back; returns the checksum of the
  // contiguous bytes (kernels/kv_copy/kv_copy.h). `staging` is memory of the host, or of
  // AllocateStaging. Blocks until done; ordered with nothing: the caller has waited for the step
  // that wrote the ranges, or for the layers (KvLayersReady), and no step reads what is scattered
  // to.
  virtual absl::StatusOr<uint64_t> KvGather(absl::Span<const absl::Span<const std::byte>> ranges,
                                            absl::Span<std::byte> staging) = 0;
  virtual absl::StatusOr<uint64_t> KvScatter(absl::Span<const std::byte> staging,
                                             absl::Span<const absl::Span<std::byte>> ranges) = 0;

  // Memory for the staging of KvGather and KvScatter. ERRORS: ResourceExhausted.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateStaging(int64_t bytes,
                                                                     StagingPlace place) = 0;
  // Copies from.size() bytes between memory of AllocateStaging or of the host. Blocks until done.
  virtual absl::Status CopyStaging(absl::Span<const std::byte> from, std::byte* to) = 0;

  // Counts memory that a library takes on this device for itself, until the last reference goes;
  // nothing on devices that no such library uses. ERRORS: ResourceExhausted naming the sizes.
  virtual absl::StatusOr<std::shared_ptr<void>> ReserveMemory(int64_t bytes,
                                                              absl::string_view what) {
    return std::shared_ptr<void>();
  }

  // Null where nothing is captured.
  virtual CaptureGate* capture_gate() { return nullptr; }

  // Bytes in use by weights, pools and programs, and how many there may be.
  virtual int64_t memory_used() const = 0;
  virtual int64_t memory_max() const = 0;
};

}  // namespace baton

#endif  // BATON_DEVICE_DEVICE_H_
