#include "device/cuda/cuda_device.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "device/cuda/cuda_program.h"
#include "device/cuda/cuda_weight.h"

namespace baton {
namespace {

constexpr int32_t kHeadDimMax = 256;

}  // namespace

CudaDevice::CudaDevice(std::unique_ptr<CudaContext> context, std::unique_ptr<KvMover> mover)
    : context_(std::move(context)),
      mover_(std::move(mover)),
      name_(absl::StrCat("cuda:", context_->ordinal())) {}

CudaDevice::~CudaDevice() = default;

absl::StatusOr<WeightPtr> CudaDevice::Prepare(absl::Span<const WeightSegment> segments,
                                              WeightRole role, DType compute) {
  return PrepareCudaWeight(segments, role, compute, context_->memory(), context_->uploader());
}

absl::StatusOr<std::unique_ptr<KvPool>> CudaDevice::CreateKvPool(const KvLayout& layout,
                                                                 int32_t num_blocks) {
  RETURN_IF_ERROR(ValidateKvLayout(layout));
  if (layout.dtype != DType::kBF16 && layout.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("the CUDA device stores KV as BF16 or F16, not ", DTypeName(layout.dtype)));
  }
  if (layout.head_dim % 2 != 0 || layout.head_dim > kHeadDimMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", layout.head_dim, ", not an even number up to ", kHeadDimMax));
  }
  if (num_blocks < 1) return absl::InvalidArgumentError("a KV pool needs at least one block");
  if (layout.block_bytes() > memory_max() / num_blocks) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", num_blocks, " blocks of ",
                                                     layout.block_bytes(),
                                                     " bytes exceed the GPU's memory"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory,
                   context_->memory().Allocate(layout.block_bytes() * num_blocks, "KV pool"));
  return std::make_unique<KvPool>(layout, num_blocks, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Program>> CudaDevice::Compile(const OpList& list,
                                                             absl::Span<const int32_t> buckets,
                                                             const ProgramLimits& limits,
                                                             const KvPool& kv) {
  ASSIGN_OR_RETURN(std::unique_ptr<Program> program,
                   CudaProgram::Create(list, buckets, limits, kv, *context_));
  return program;
}

absl::StatusOr<uint64_t> CudaDevice::KvGather(absl::Span<const absl::Span<const std::byte>> ranges,
                                              absl::Span<std::byte> staging) {
  return mover_->Gather(ranges, staging);
}

absl::StatusOr<uint64_t> CudaDevice::KvScatter(absl::Span<const std::byte> staging,
                                               absl::Span<const absl::Span<std::byte>> ranges) {
  return mover_->Scatter(staging, ranges);
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaDevice::AllocateStaging(int64_t bytes,
                                                                       StagingPlace place) {
  if (place == StagingPlace::kHost) return AllocatePinned(bytes);
  return context_->memory().Allocate(bytes, "KV staging slots");
}

absl::Status CudaDevice::CopyStaging(absl::Span<const std::byte> from, std::byte* to) {
  return mover_->Copy(from, to);
}

absl::StatusOr<std::shared_ptr<void>> CudaDevice::ReserveMemory(int64_t bytes,
                                                                absl::string_view what) {
  return context_->memory().Reserve(bytes, what);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const PluginDeviceOptions& options) {
  SetLogLevel(options.log_level);
  ASSIGN_OR_RETURN(std::unique_ptr<CudaContext> context, CudaContext::Create(options));
  ASSIGN_OR_RETURN(std::unique_ptr<KvMover> mover, KvMover::Create(*context));
  LogInfo("GPU opened", {{"device", options.ordinal},
                         {"name", context->name()},
                         {"multiprocessors", context->num_sms()},
                         {"memory_bytes_max", context->memory().bytes_max()},
                         {"deterministic", options.deterministic ? "yes" : "no"}});
  return std::make_unique<CudaDevice>(std::move(context), std::move(mover));
}

}  // namespace baton
