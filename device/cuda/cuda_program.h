// A compiled list on the GPU. A step is: one block of metadata copied to the GPU, the kernels, the
// results copied back, an event. Steps of one token a sequence are padded to a few sizes; each size
// is launched kernel by kernel the first time and captured into a graph the second, so that
// start-up stays short. All other steps are launched kernel by kernel: they run far longer than
// that takes.
//
// Thread rule: owned by one thread at a time, as every Program.
#ifndef BATON_DEVICE_CUDA_CUDA_PROGRAM_H_
#define BATON_DEVICE_CUDA_CUDA_PROGRAM_H_

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "device/cuda/attention_planner.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/kv_marks.h"
#include "device/cuda/step_launcher.h"
#include "device/device.h"

namespace baton {

// Rows that a decode step of so many sequences is padded to: every number up to 8, then multiples
// of 8 to 64, of 16 to 128, of 32 to 256, of 64 beyond.
int32_t DecodeStepRows(int32_t sequences);

class CudaProgram : public Program {
  struct Private {};

 public:
  static absl::StatusOr<std::unique_ptr<CudaProgram>> Create(const OpList& list,
                                                             absl::Span<const int32_t> buckets,
                                                             const ProgramLimits& limits,
                                                             const KvPool& kv,
                                                             CudaContext& context);
  CudaProgram(Private, const OpList& list, absl::Span<const int32_t> buckets,
              const ProgramLimits& limits, CudaContext& context);
  ~CudaProgram() override;

  absl::Span<const int32_t> buckets() const override { return buckets_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  ProgramStats stats() const override { return stats_; }
  absl::StatusOr<DeviceTicket> Enqueue(int bucket, const StepMeta& meta) override;
  absl::StatusOr<StepOutputs> Wait(DeviceTicket ticket, Duration timeout) override;
  int32_t KvLayersReady(DeviceTicket ticket) override;

 private:
  // A step from Enqueue to Wait.
  struct Slot {
    std::shared_ptr<std::byte> block;    // Pinned.
    std::shared_ptr<std::byte> results;  // Pinned, SampleResult [samples_max].
    std::shared_ptr<std::byte> logits;   // Pinned, made when first asked for.
    cudaEvent_t done = nullptr;
    std::unique_ptr<KvMarks> kv_marks;
    int32_t num_samples = 0;
    bool return_logits = false;
    TimePoint waited_since = kNever;  // The first Wait; kNever before it.
  };
  // A size of decode steps.
  struct Graph {
    bool launched = false;  // Once, kernel by kernel.
    cudaGraphExec_t executable = nullptr;
    int launches = 0;
  };

  absl::Status Allocate(int32_t tokens_max, const KvPool& kv);
  bool IsDecodeStep(const StepMeta& meta) const;
  absl::Status LaunchDecode(const StepRun& run);
  absl::Status Capture(const StepRun& run, Graph& graph);
  absl::Status CopyResults(Slot& slot);
  absl::Status EnqueueStep(const StepMeta& meta, Slot& slot);

  // Constant after Create.
  const OpList list_;
  const std::vector<int32_t> buckets_;
  const ProgramLimits limits_;
  CudaContext& context_;
  std::optional<AttentionPlanner> attention_;
  std::unique_ptr<StepLauncher> launcher_;
  std::shared_ptr<std::byte> block_;  // On the GPU: the block of the step that runs.
  size_t block_bytes_max_ = 0;
  int64_t workspace_bytes_ = 0;

  std::map<int32_t, Graph> graphs_;  // By rows.
  ProgramStats stats_;
  DeviceTicket next_ticket_ = 1;
  DeviceTicket oldest_ticket_ = 1;
  Slot slots_[kInFlightMax];
  Mutex nap_mutex_;
  CondVar nap_;
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_PROGRAM_H_
