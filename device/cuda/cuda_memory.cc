#include "device/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_error.h"

namespace baton {
namespace {

// The driver and the contexts of idle processes always take some.
constexpr int64_t kTakenWorthNaming = int64_t{2} << 30;

}  // namespace

absl::Status CudaMemory::DoNotFit(absl::string_view what, int64_t bytes, int64_t used) const {
  std::string message = absl::StrCat(what, ": ", bytes, " bytes do not fit: ", used, " of ",
                                     bytes_max_, " are in use");
  if (bytes_taken_ > kTakenWorthNaming) {
    absl::StrAppend(&message, ", and ", bytes_taken_,
                    " bytes of the GPU were taken when this process came, by other processes or "
                    "its driver");
  }
  return absl::ResourceExhaustedError(message);
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaMemory::Allocate(int64_t bytes,
                                                                absl::string_view what) {
  if (bytes == 0) return std::shared_ptr<std::byte>();
  const int64_t before = bytes_used_.fetch_add(bytes);
  if (bytes < 0 || before > bytes_max_ - bytes) {
    bytes_used_.fetch_sub(bytes);
    return DoNotFit(what, bytes, before);
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // Not sticky, but remembered until it is read.
    bytes_used_.fetch_sub(bytes);
    return Annotate(DoNotFit(what, bytes, before),
                    "something else has taken the GPU's memory, another process perhaps");
  }
  if (error != cudaSuccess) {
    bytes_used_.fetch_sub(bytes);
    return CudaStatus(error, absl::StrCat("cudaMalloc of ", what));
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [self = shared_from_this(), bytes](std::byte* p) {
                                      cudaSetDevice(self->ordinal_);
                                      cudaFree(p);
                                      self->bytes_used_.fetch_sub(bytes);
                                    });
}

absl::StatusOr<std::shared_ptr<void>> CudaMemory::Reserve(int64_t bytes, absl::string_view what) {
  const int64_t before = bytes_used_.fetch_add(bytes);
  // The pointer only carries the deleter; it is never followed.
  std::shared_ptr<void> counted(
      this, [self = shared_from_this(), bytes](void*) { self->bytes_used_.fetch_sub(bytes); });
  if (bytes < 0 || before > bytes_max_ - bytes) {
    return DoNotFit(what, bytes, before);
  }
  return counted;
}

absl::StatusOr<std::shared_ptr<std::byte>> AllocatePinned(int64_t bytes) {
  if (bytes == 0) return std::shared_ptr<std::byte>();
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&memory, static_cast<size_t>(bytes)),
                             absl::StrCat("pinned memory of ", bytes, " bytes")));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                    [](std::byte* p) { cudaFreeHost(p); });
}

}  // namespace baton
