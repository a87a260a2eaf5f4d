// A compiled list on the CPU: one stage of the thread pool per operation, built once. A step sets
// the number of items of each stage from its metadata and runs the region.
//
// Thread rule: Enqueue, Wait and KvLayersReady belong to the owner; ExecuteStep runs on the
// device's executor.
#ifndef BATON_DEVICE_CPU_CPU_PROGRAM_H_
#define BATON_DEVICE_CPU_CPU_PROGRAM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/bounded_queue.h"
#include "common/base/mutex.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"
#include "device/workspace_plan.h"
#include "kernels/attention/attention.h"

namespace baton {

class CpuProgram : public Program {
  struct Private {};

 public:
  static absl::StatusOr<std::unique_ptr<CpuProgram>> Create(
      const OpList& list, absl::Span<const int32_t> buckets, const ProgramLimits& limits,
      const KvPool& kv, CpuMemory& memory, ThreadPool& pool,
      BoundedQueue<std::function<void()>>& queue);

  CpuProgram(Private, const OpList& list, absl::Span<const int32_t> buckets,
             const ProgramLimits& limits, const KvPool& kv, ThreadPool& pool,
             BoundedQueue<std::function<void()>>& queue);
  ~CpuProgram() override;

  absl::Span<const int32_t> buckets() const override { return buckets_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  absl::StatusOr<DeviceTicket> Enqueue(int bucket, const StepMeta& meta) override;
  absl::StatusOr<StepOutputs> Wait(DeviceTicket ticket, Duration timeout) override;
  int32_t KvLayersReady(DeviceTicket ticket) override;

 private:
  // A step from Enqueue to Wait.
  struct Slot {
    int bucket = 0;
    StepMeta meta;
    StepOutputs outputs;
    std::atomic<int32_t> kv_layers_ready{0};
    bool done = false;  // Guarded by mutex_ of the program.
  };
  // Sets num_items of a stage for the step in step_.
  using ItemCount = std::function<int32_t()>;

  absl::Status Allocate(CpuMemory& memory);
  void BuildStages();
  void AddStage(ItemCount items, std::function<void(int32_t item, int thread)> run);
  void Build(const EmbedOp& op);
  void Build(const AddNormOp& op);
  void Build(const LinearOp& op);
  void Build(const RopeAnglesOp& op);
  void Build(const RopeKvWriteOp& op);
  void Build(const AttentionOp& op);
  void Build(const GatherRowsOp& op);
  void Build(const SampleOp& op);

  // Of the running step.
  float* ValueData(ValueId id) const;
  int64_t NumRows(ValueRows rows) const;
  int64_t NumRows(ValueId id) const;
  std::byte* Scratch(int thread) const {
    return scratch_ + static_cast<size_t>(thread) * scratch_bytes_;
  }
  kernels::PagedKvLayer KvLayer(int32_t layer) const;

  void ExecuteStep(Slot& slot);
  void PrepareStep(Slot& slot);
  void PlanAttention();
  int64_t WorkOfStep() const;

  // Constant after Create.
  const OpList list_;
  const std::vector<int32_t> buckets_;
  const ProgramLimits limits_;
  const KvPool& kv_;
  ThreadPool& pool_;
  BoundedQueue<std::function<void()>>& queue_;
  std::vector<WorkspacePlan> plans_;  // One a bucket, over the same memory.
  std::shared_ptr<std::byte> workspace_;
  int64_t workspace_bytes_ = 0;
  std::byte* scratch_ = nullptr;  // [num_threads][scratch_bytes_]
  size_t scratch_bytes_ = 0;
  int64_t weight_elements_ = 0;  // Of all Linear operations: estimates a step's work.
  ValueId logits_ = kNoValue;

  // Owned by the executor while a step runs.
  std::vector<Stage> stages_;
  std::vector<ItemCount> item_counts_;
  Slot* step_ = nullptr;
  std::vector<int32_t> token_ids_;  // [num_tokens], samples of the step before filled in
  std::vector<int32_t> last_samples_;
  std::vector<kernels::AttentionWork> attention_work_;  // kv_head is filled in per item
  int32_t attention_tokens_ = 0;                        // Query tokens of a work item.

  // Owned by the caller of Enqueue and Wait.
  DeviceTicket next_ticket_ = 1;
  DeviceTicket oldest_ticket_ = 1;
  Slot slots_[kInFlightMax];

  Mutex mutex_;
  CondVar step_done_;
};

}  // namespace baton

#endif  // BATON_DEVICE_CPU_CPU_PROGRAM_H_
