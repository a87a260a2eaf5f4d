#include "device/cuda/cuda_context.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_error.h"

namespace baton {
namespace {

// The kernels are compiled for this architecture alone.
constexpr int kMajor = 9;
constexpr int kMinor = 0;
// Left to the driver, to kernel modules that load lazily, and to other small users of the GPU.
constexpr int64_t kReserveBytes = int64_t{1} << 30;
// What the library recommends for Hopper is 32 MiB; split products of the widest layers take more.
constexpr int64_t kMatmulWorkspaceBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Create(
    const PluginDeviceOptions& options) {
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::NotFoundError(
        absl::StrCat("no GPU ", options.ordinal, ": there are ", count, " (numbered from 0)"));
  }
  auto context = std::make_unique<CudaContext>(Private{});
  context->ordinal_ = options.ordinal;
  context->deterministic_ = options.deterministic;
  const absl::Status entered = context->Enter();
  if (absl::IsResourceExhausted(entered)) {
    return Annotate(entered, absl::StrCat("GPU ", options.ordinal,
                                          " has no memory left, other processes hold it"));
  }
  RETURN_IF_ERROR(entered);
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, options.ordinal), "properties"));
  context->name_ = properties.name;
  context->num_sms_ = properties.multiProcessorCount;
  if (properties.major != kMajor || properties.minor != kMinor) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", options.ordinal, " (", properties.name, ") has compute capability ",
                     properties.major, ".", properties.minor, "; this build has code for ", kMajor,
                     ".", kMinor, " (Hopper) only"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&context->stream_, cudaStreamNonBlocking),
                             "creating a stream"));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "free memory"));
  const int64_t bytes_max = static_cast<int64_t>(free_bytes) - kReserveBytes;
  if (bytes_max <= 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("GPU ", options.ordinal, ": only ", free_bytes, " of ", total_bytes,
                     " bytes are free: another process has the rest"));
  }
  context->memory_ = std::make_shared<CudaMemory>(options.ordinal, bytes_max,
                                                  static_cast<int64_t>(total_bytes - free_bytes));
  context->uploader_ = std::make_unique<WeightUploader>(options.ordinal);
  ASSIGN_OR_RETURN(context->matmul_workspace_,
                   context->memory_->Allocate(kMatmulWorkspaceBytes, "matmul workspace"));
  cuda::MatmulPlansOptions plans;
  plans.library.workspace = context->matmul_workspace_.get();
  plans.library.workspace_bytes = kMatmulWorkspaceBytes;
  plans.library.deterministic = options.deterministic;
  if (!options.cache_directory.empty()) {
    std::error_code error;  // Writing the cache will say what is wrong.
    std::filesystem::create_directories(options.cache_directory, error);
    plans.cache_path = absl::StrCat(options.cache_directory, "/matmul_plans.jsonl");
  }
  ASSIGN_OR_RETURN(context->matmul_, cuda::MatmulPlans::Create(plans));
  return context;
}

CudaContext::~CudaContext() {
  cudaSetDevice(ordinal_);
  matmul_.reset();
  uploader_.reset();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status CudaContext::Enter() const {
  return CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice");
}

absl::Status CudaContext::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

absl::Status CudaContext::Check(cudaError_t error, absl::string_view what) {
  absl::Status status = CudaStatus(error, what);
  if (absl::IsUnavailable(status)) {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = status;
  }
  return status;
}

absl::Status CudaContext::Check(kernels::KernelStatus status, absl::string_view what) {
  if (status == kernels::KernelStatus::kOk) return absl::OkStatus();
  if (status == kernels::KernelStatus::kLaunchFailed) {
    const absl::Status error = Check(cudaGetLastError(), what);
    if (!error.ok()) return error;
  }
  return absl::InternalError(absl::StrCat(what, ": ", kernels::KernelStatusName(status)));
}

}  // namespace baton
