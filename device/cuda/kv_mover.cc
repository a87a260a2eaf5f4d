#include "device/cuda/kv_mover.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

using kernels::KvCopyRange;

constexpr size_t kKernelAlignment = 16;

// Whether the gather and scatter kernels may work on this memory in place.
bool InDeviceMemory(const std::byte* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % kKernelAlignment != 0) return false;
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();  // Remembered until it is read.
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvMover>> KvMover::Create(CudaContext& context) {
  auto mover = std::make_unique<KvMover>(Private{}, context);
  MutexLock lock(mover->mutex_);
  RETURN_IF_ERROR(context.Enter());
  // A peer waits for what is moved: before the next thread blocks of compute.
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(
      context.Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities"));
  RETURN_IF_ERROR(context.Check(
      cudaStreamCreateWithPriority(&mover->stream_, cudaStreamNonBlocking, greatest), "a stream"));
  ASSIGN_OR_RETURN(mover->device_checksum_,
                   context.memory().Allocate(sizeof(uint64_t), "KV staging"));
  ASSIGN_OR_RETURN(mover->host_checksum_, AllocatePinned(sizeof(uint64_t)));
  return mover;
}

KvMover::~KvMover() {
  MutexLock lock(mutex_);
  cudaSetDevice(context_.ordinal());
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status KvMover::Plan(absl::Span<const absl::Span<const std::byte>> ranges,
                           absl::Span<const std::byte> staging) {
  RETURN_IF_ERROR(context_.failure());
  RETURN_IF_ERROR(context_.Enter());
  const auto bytes = static_cast<int64_t>(staging.size());
  const bool in_place = InDeviceMemory(staging.data());
  if (!in_place && bytes > staging_bytes_) {
    staging_.reset();
    staging_bytes_ = 0;
    ASSIGN_OR_RETURN(staging_, context_.memory().Allocate(bytes, "KV staging"));
    staging_bytes_ = bytes;
  }
  const auto num_ranges = static_cast<int64_t>(ranges.size());
  if (num_ranges > ranges_max_) {
    const int64_t list_bytes = num_ranges * static_cast<int64_t>(sizeof(KvCopyRange));
    ASSIGN_OR_RETURN(device_ranges_, context_.memory().Allocate(list_bytes, "KV staging"));
    ASSIGN_OR_RETURN(host_ranges_, AllocatePinned(list_bytes));
    ranges_max_ = num_ranges;
  }
  // Offsets are counted from the lowest range, which is as aligned as its pool.
  const std::byte* base = ranges[0].data();
  const std::byte* end = base;
  for (const absl::Span<const std::byte> range : ranges) {
    base = std::min(base, range.data());
    end = std::max(end, range.data() + range.size());
  }
  auto* list = reinterpret_cast<KvCopyRange*>(host_ranges_.get());
  for (size_t i = 0; i < ranges.size(); ++i) {
    list[i] = {.pool_offset = ranges[i].data() - base,
               .bytes = static_cast<int64_t>(ranges[i].size())};
  }
  int64_t total_bytes = 0;
  RETURN_IF_ERROR(context_.Check(kernels::PlanKvCopy(list, num_ranges, end - base, &total_bytes),
                                 "ranges of KV"));
  if (total_bytes > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranges of ", total_bytes, " bytes for a staging slot of ", bytes));
  }
  params_ = {.pool = const_cast<std::byte*>(base),
             .staging = in_place ? const_cast<std::byte*>(staging.data()) : staging_.get(),
             .ranges = reinterpret_cast<const KvCopyRange*>(device_ranges_.get()),
             .num_ranges = static_cast<int32_t>(num_ranges),
             .total_bytes = total_bytes,
             .checksum = reinterpret_cast<uint64_t*>(device_checksum_.get())};
  return context_.Check(
      cudaMemcpyAsync(device_ranges_.get(), list, ranges.size() * sizeof(KvCopyRange),
                      cudaMemcpyHostToDevice, stream_),
      "copying ranges of KV");
}

absl::StatusOr<uint64_t> KvMover::ReadChecksum() {
  RETURN_IF_ERROR(context_.Check(cudaMemcpyAsync(host_checksum_.get(), device_checksum_.get(),
                                                 sizeof(uint64_t), cudaMemcpyDeviceToHost, stream_),
                                 "copying a checksum"));
  RETURN_IF_ERROR(context_.Check(cudaStreamSynchronize(stream_), "moving KV"));
  return *reinterpret_cast<const uint64_t*>(host_checksum_.get());
}

absl::StatusOr<uint64_t> KvMover::Gather(absl::Span<const absl::Span<const std::byte>> ranges,
                                         absl::Span<std::byte> staging) {
  if (ranges.empty()) return absl::InvalidArgumentError("no ranges of KV to gather");
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(Plan(ranges, staging));
  RETURN_IF_ERROR(context_.Check(kernels::KvGatherCuda(params_, stream_), "gathering KV"));
  if (params_.staging != staging.data()) {
    RETURN_IF_ERROR(context_.Check(
        cudaMemcpyAsync(staging.data(), params_.staging, static_cast<size_t>(params_.total_bytes),
                        cudaMemcpyDefault, stream_),
        "copying KV"));
  }
  return ReadChecksum();
}

absl::StatusOr<uint64_t> KvMover::Scatter(absl::Span<const std::byte> staging,
                                          absl::Span<const absl::Span<std::byte>> ranges) {
  if (ranges.empty()) return absl::InvalidArgumentError("no ranges of KV to scatter to");
  std::vector<absl::Span<const std::byte>> sources(ranges.begin(), ranges.end());
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(Plan(sources, staging));
  if (params_.staging != staging.data()) {
    RETURN_IF_ERROR(context_.Check(
        cudaMemcpyAsync(params_.staging, staging.data(), static_cast<size_t>(params_.total_bytes),
                        cudaMemcpyDefault, stream_),
        "copying KV"));
  }
  RETURN_IF_ERROR(context_.Check(kernels::KvScatterCuda(params_, stream_), "scattering KV"));
  return ReadChecksum();
}

absl::Status KvMover::Copy(absl::Span<const std::byte> from, std::byte* to) {
  if (from.empty()) return absl::OkStatus();
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(context_.failure());
  RETURN_IF_ERROR(context_.Enter());
  RETURN_IF_ERROR(
      context_.Check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDefault, stream_),
                     "copying KV staging"));
  return context_.Check(cudaStreamSynchronize(stream_), "copying KV staging");
}

}  // namespace baton
