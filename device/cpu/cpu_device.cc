#include "device/cpu/cpu_device.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/cpu/cpu_program.h"
#include "device/cpu/cpu_weight.h"
#include "kernels/attention/attention.h"
#include "kernels/kv_copy/kv_copy.h"

namespace baton {
namespace {

// Steps outstanding over all programs of the device.
constexpr size_t kQueueMax = 1024;

int ProcessorsOfThisProcess() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

absl::Status CheckCpuFeatures() {
  std::string missing;
  if (!__builtin_cpu_supports("avx2")) missing += " AVX2";
  if (!__builtin_cpu_supports("fma")) missing += " FMA";
  if (!__builtin_cpu_supports("f16c")) missing += " F16C";
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the CPU device needs a processor of the x86-64-v3 level; this one lacks", missing));
}

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(const CpuDeviceOptions& options) {
  RETURN_IF_ERROR(CheckCpuFeatures());
  if (options.threads < 0 || options.threads > kCpuThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, ", not from 0 to ", kCpuThreadsMax));
  }
  if (options.memory_bytes_max < 0) {
    return absl::InvalidArgumentError("memory_bytes_max is negative");
  }
  const int threads = options.threads > 0 ? options.threads : ProcessorsOfThisProcess();
  return std::make_unique<CpuDevice>(Private{}, options, std::min(threads, kCpuThreadsMax));
}

CpuDevice::CpuDevice(Private, const CpuDeviceOptions& options, int threads)
    : memory_(std::make_shared<CpuMemory>(options.memory_bytes_max > 0 ? options.memory_bytes_max
                                                                       : HostMemoryBytes())),
      pool_(threads),
      queue_(kQueueMax),
      executor_([this] { ExecutorMain(); }) {}

CpuDevice::~CpuDevice() {
  queue_.Close();
  executor_.join();
}

void CpuDevice::ExecutorMain() {
  while (true) {
    std::vector<std::function<void()>> steps = queue_.PopAll(std::chrono::seconds(3600));
    if (steps.empty() && queue_.closed()) return;
    for (const auto& step : steps) step();
  }
}

absl::StatusOr<WeightPtr> CpuDevice::Prepare(absl::Span<const WeightSegment> segments,
                                             WeightRole role, DType compute) {
  if (compute != DType::kF32) {
    return absl::InvalidArgumentError("the CPU device computes in F32 only");
  }
  return PrepareCpuWeight(segments, role, *memory_);
}

absl::StatusOr<std::unique_ptr<KvPool>> CpuDevice::CreateKvPool(const KvLayout& layout,
                                                                int32_t num_blocks) {
  RETURN_IF_ERROR(ValidateKvLayout(layout));
  if (layout.dtype != DType::kF32) {
    return absl::InvalidArgumentError("the CPU device stores KV as F32 only");
  }
  if (layout.head_dim > kernels::kAttentionHeadDimMax) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim is ", layout.head_dim, ", more than ",
                                                   kernels::kAttentionHeadDimMax));
  }
  if (num_blocks < 1) return absl::InvalidArgumentError("a KV pool needs at least one block");
  if (layout.block_bytes() > memory_max() / num_blocks) {
    return absl::ResourceExhaustedError(absl::StrCat("KV pool: ", num_blocks, " blocks of ",
                                                     layout.block_bytes(),
                                                     " bytes exceed the device's memory"));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory,
                   memory_->Allocate(layout.block_bytes() * num_blocks, "KV pool"));
  return std::make_unique<KvPool>(layout, num_blocks, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Program>> CpuDevice::Compile(const OpList& list,
                                                            absl::Span<const int32_t> buckets,
                                                            const ProgramLimits& limits,
                                                            const KvPool& kv) {
  ASSIGN_OR_RETURN(std::unique_ptr<Program> program,
                   CpuProgram::Create(list, buckets, limits, kv, *memory_, pool_, queue_));
  return program;
}

absl::StatusOr<uint64_t> CpuDevice::KvGather(absl::Span<const absl::Span<const std::byte>> ranges,
                                             absl::Span<std::byte> staging) {
  return kernels::GatherBytes(ranges, staging);
}

absl::StatusOr<uint64_t> CpuDevice::KvScatter(absl::Span<const std::byte> staging,
                                              absl::Span<const absl::Span<std::byte>> ranges) {
  return kernels::ScatterBytes(staging, ranges);
}

absl::Status CpuDevice::CopyStaging(absl::Span<const std::byte> from, std::byte* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

}  // namespace baton
