// Ranges of KV pools to staging and back: one gather (or scatter) kernel with the checksum. If the
// staging is memory of the host, through a buffer on the GPU and with one copy. In a stream of its
// own, beside the steps.
//
// Thread-safe; one move at a time.
#ifndef BATON_DEVICE_CUDA_KV_MOVER_H_
#define BATON_DEVICE_CUDA_KV_MOVER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "device/cuda/cuda_context.h"
#include "kernels/kv_copy/kv_copy_cuda.h"

namespace baton {

class KvMover {
  struct Private {};

 public:
  static absl::StatusOr<std::unique_ptr<KvMover>> Create(CudaContext& context);
  KvMover(Private, CudaContext& context) : context_(context) {}
  ~KvMover();

  // Device::KvGather, KvScatter and CopyStaging.
  absl::StatusOr<uint64_t> Gather(absl::Span<const absl::Span<const std::byte>> ranges,
                                  absl::Span<std::byte> staging);
  absl::StatusOr<uint64_t> Scatter(absl::Span<const std::byte> staging,
                                   absl::Span<const absl::Span<std::byte>> ranges);
  absl::Status Copy(absl::Span<const std::byte> from, std::byte* to);

 private:
  // Fills the list of ranges (addresses counted from 0) and grows the buffers. params_.staging
  // becomes `staging` if kernels may use it, else the buffer.
  absl::Status Plan(absl::Span<const absl::Span<const std::byte>> ranges,
                    absl::Span<const std::byte> staging) REQUIRES(mutex_);
  absl::StatusOr<uint64_t> ReadChecksum() REQUIRES(mutex_);

  CudaContext& context_;
  Mutex mutex_;
  cudaStream_t stream_ GUARDED_BY(mutex_) = nullptr;
  int64_t staging_bytes_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<std::byte> staging_ GUARDED_BY(mutex_);  // On the GPU.
  int64_t ranges_max_ GUARDED_BY(mutex_) = 0;
  std::shared_ptr<std::byte> device_ranges_ GUARDED_BY(mutex_);
  std::shared_ptr<std::byte> host_ranges_ GUARDED_BY(mutex_);      // Pinned.
  std::shared_ptr<std::byte> device_checksum_ GUARDED_BY(mutex_);  // uint64
  std::shared_ptr<std::byte> host_checksum_ GUARDED_BY(mutex_);    // Pinned.
  kernels::KvCopyCudaParams params_ GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_KV_MOVER_H_
