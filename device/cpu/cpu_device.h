// The CPU device: float32 activations, weights in their stored type, AVX2 kernels. Every result is
// bit-invariant: it depends neither on the batch, nor on chunking, nor on the number of threads.
//
// One executor thread runs the steps of all programs in the order of Enqueue, each as one region of
// the thread pool. So several models share the same cores without over-subscription.
#ifndef BATON_DEVICE_CPU_CPU_DEVICE_H_
#define BATON_DEVICE_CPU_CPU_DEVICE_H_

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bounded_queue.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/thread_pool.h"
#include "device/device.h"

namespace baton {

struct CpuDeviceOptions {
  // Threads that compute, the executor included. 0: as many as the process may run on.
  int threads = 0;
  // Limit of what weights, pools and programs may take. 0: the memory of the machine or control
  // group.
  int64_t memory_bytes_max = 0;
};

inline constexpr int kCpuThreadsMax = 256;

class CpuDevice : public Device {
  struct Private {};

 public:
  // ERRORS: FailedPrecondition: the processor lacks AVX2, FMA or F16C; InvalidArgument: threads.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Create(const CpuDeviceOptions& options);

  CpuDevice(Private, const CpuDeviceOptions& options, int threads);
  // REQUIRES: every program is destroyed.
  ~CpuDevice() override;

  absl::string_view name() const override { return "cpu"; }
  int threads() const { return pool_.num_threads(); }
  // The CPU computes in float32 whatever weights are stored as.
  DType ComputeType(DType stored) const override { return DType::kF32; }
  absl::StatusOr<WeightPtr> Prepare(absl::Span<const WeightSegment> segments, WeightRole role,
                                    DType compute) override;
  absl::StatusOr<std::unique_ptr<KvPool>> CreateKvPool(const KvLayout& layout,
                                                       int32_t num_blocks) override;
  absl::StatusOr<std::unique_ptr<Program>> Compile(const OpList& list,
                                                   absl::Span<const int32_t> buckets,
                                                   const ProgramLimits& limits,
                                                   const KvPool& kv) override;
  absl::StatusOr<uint64_t> KvGather(absl::Span<const absl::Span<const std::byte>> ranges,
                                    absl::Span<std::byte> staging) override;
  absl::StatusOr<uint64_t> KvScatter(absl::Span<const std::byte> staging,
                                     absl::Span<const absl::Span<std::byte>> ranges) override;
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateStaging(int64_t bytes,
                                                             StagingPlace place) override {
    return memory_->Allocate(bytes, "KV staging");
  }
  absl::Status CopyStaging(absl::Span<const std::byte> from, std::byte* to) override;
  int64_t memory_used() const override { return memory_->bytes_used(); }
  int64_t memory_max() const override { return memory_->bytes_max(); }

 private:
  void ExecutorMain();

  const std::shared_ptr<CpuMemory> memory_;
  ThreadPool pool_;
  BoundedQueue<std::function<void()>> queue_;
  std::thread executor_;
};

// OK if the processor has what the kernels were compiled for.
absl::Status CheckCpuFeatures();

}  // namespace baton

#endif  // BATON_DEVICE_CPU_CPU_DEVICE_H_
