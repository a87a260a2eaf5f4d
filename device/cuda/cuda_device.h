// The CUDA device: one GPU of compute capability 9.0. Made by the plug-in (plugin.cc).
#ifndef BATON_DEVICE_CUDA_CUDA_DEVICE_H_
#define BATON_DEVICE_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/kv_mover.h"
#include "device/device.h"

namespace baton {

class CudaDevice : public Device {
 public:
  CudaDevice(std::unique_ptr<CudaContext> context, std::unique_ptr<KvMover> mover);
  ~CudaDevice() override;

  absl::string_view name() const override { return name_; }
  // F16 stays F16; everything else computes in BF16.
  DType ComputeType(DType stored) const override {
    return stored == DType::kF16 ? DType::kF16 : DType::kBF16;
  }
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
                                                             StagingPlace place) override;
  absl::Status CopyStaging(absl::Span<const std::byte> from, std::byte* to) override;
  absl::StatusOr<std::shared_ptr<void>> ReserveMemory(int64_t bytes,
                                                      absl::string_view what) override;
  CaptureGate* capture_gate() override { return &context_->capture_gate(); }
  int64_t memory_used() const override { return context_->memory().bytes_used(); }
  int64_t memory_max() const override { return context_->memory().bytes_max(); }

 private:
  const std::unique_ptr<CudaContext> context_;
  const std::unique_ptr<KvMover> mover_;
  const std::string name_;
};

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const PluginDeviceOptions& options);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_DEVICE_H_
