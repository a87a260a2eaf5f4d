// CUDA errors as absl::Status. Thread-safe.
#ifndef BATON_DEVICE_CUDA_CUDA_ERROR_H_
#define BATON_DEVICE_CUDA_CUDA_ERROR_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

// OK for cudaSuccess. ResourceExhausted: out of memory. Unavailable: the context is lost (an error
// that every later call reports too: illegal access, hardware fault, a hung launch), so the process
// must be restarted. FailedPrecondition: no driver, no GPU, or one that does not match.
// Internal: anything else. The message has `what`, the error's name and its text.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// True for errors after which the context is lost.
bool IsSticky(cudaError_t error);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_CUDA_ERROR_H_
