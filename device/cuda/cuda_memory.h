// Memory of one GPU, counted against a budget, and pinned memory of the host. Thread-safe.
#ifndef BATON_DEVICE_CUDA_CUDA_MEMORY_H_
#define BATON_DEVICE_CUDA_CUDA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

class CudaMemory : public std::enable_shared_from_this<CudaMemory> {
 public:
  // `bytes_taken`: of the GPU, by others, when this process came; errors name them.
  CudaMemory(int ordinal, int64_t bytes_max, int64_t bytes_taken)
      : ordinal_(ordinal), bytes_max_(bytes_max), bytes_taken_(bytes_taken) {}

  // Not initialised, aligned to 256 bytes; given back when the last reference goes. Null for 0
  // bytes. ERRORS: ResourceExhausted: "what: ... do not fit", with the sizes; memory that others
  // had taken, or have taken meanwhile, is named.
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(int64_t bytes, absl::string_view what);

  // Counts bytes that somebody else allocates, until the last reference goes. ERRORS: as above.
  absl::StatusOr<std::shared_ptr<void>> Reserve(int64_t bytes, absl::string_view what);

  int ordinal() const { return ordinal_; }
  int64_t bytes_used() const { return bytes_used_.load(); }
  int64_t bytes_max() const { return bytes_max_; }

 private:
  // "what: ... do not fit".
  absl::Status DoNotFit(absl::string_view what, int64_t bytes, int64_t used) const;

  const int ordinal_;
  const int64_t bytes_max_;
  const int64_t bytes_taken_;
  std::atomic<int64_t> bytes_used_{0};
};

// Page-locked, for asynchronous copies. ERRORS: ResourceExhausted.
absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(int64_t bytes);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_MEMORY_H_
