// Brings weights from mapped files to the GPU: threads convert chunks of rows into pinned memory
// while the copies of earlier chunks run. Thread-safe; one upload at a time.
#ifndef BATON_DEVICE_CUDA_WEIGHT_UPLOADER_H_
#define BATON_DEVICE_CUDA_WEIGHT_UPLOADER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "device/cuda/cuda_memory.h"

namespace baton {

class WeightUploader {
 public:
  // Writes rows [row_begin, row_end) to `out`, row_bytes each. Called from several threads.
  using FillFn = std::function<void(int64_t row_begin, int64_t row_end, std::byte* out)>;

  explicit WeightUploader(int ordinal);
  ~WeightUploader();

  // Runs `work`, which enqueues to the stream it is given, and waits for it.
  absl::Status Run(const std::function<absl::Status(cudaStream_t)>& work);

  // Fills `num_rows` rows of `row_bytes` at `device`; returns when they are there.
  absl::Status Upload(std::byte* device, int64_t num_rows, int64_t row_bytes, const FillFn& fill);

 private:
  // What one thread works with: two buffers, so that one is filled while the other travels.
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t copied[2] = {nullptr, nullptr};
    std::shared_ptr<std::byte> buffers[2];
  };

  // At least so many, or as many as there may be.
  absl::Status EnsureLanes(int64_t count) REQUIRES(mutex_);

  const int ordinal_;
  Mutex mutex_;
  std::vector<Lane> lanes_ GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_WEIGHT_UPLOADER_H_
