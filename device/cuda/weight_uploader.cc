#include "device/cuda/weight_uploader.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/base/status_macros.h"
#include "device/cuda/cuda_error.h"

namespace baton {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr int kLanesMax = 8;

int NumLanes() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kLanesMax);
}

}  // namespace

WeightUploader::WeightUploader(int ordinal) : ordinal_(ordinal) {}

WeightUploader::~WeightUploader() {
  MutexLock lock(mutex_);
  for (Lane& lane : lanes_) {
    for (cudaEvent_t event : lane.copied) cudaEventDestroy(event);
    cudaStreamDestroy(lane.stream);
  }
}

absl::Status WeightUploader::EnsureLanes(int64_t count) {
  const auto wanted = static_cast<size_t>(std::min<int64_t>(count, NumLanes()));
  while (lanes_.size() < wanted) {
    Lane lane;
    RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking),
                               "a stream for uploads"));
    for (int i = 0; i < 2; ++i) {
      RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&lane.copied[i], cudaEventDisableTiming),
                                 "an event"));
      ASSIGN_OR_RETURN(lane.buffers[i], AllocatePinned(kChunkBytes));
    }
    lanes_.push_back(std::move(lane));
  }
  return absl::OkStatus();
}

absl::Status WeightUploader::Run(const std::function<absl::Status(cudaStream_t)>& work) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  RETURN_IF_ERROR(EnsureLanes(1));
  RETURN_IF_ERROR(work(lanes_[0].stream));
  return CudaStatus(cudaStreamSynchronize(lanes_[0].stream), "preparing weights");
}

absl::Status WeightUploader::Upload(std::byte* device, int64_t num_rows, int64_t row_bytes,
                                    const FillFn& fill) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  if (row_bytes > kChunkBytes) return absl::InvalidArgumentError("a row of weights is too long");
  const int64_t rows_per_chunk = kChunkBytes / row_bytes;
  const int64_t num_chunks = (num_rows + rows_per_chunk - 1) / rows_per_chunk;
  // Page-locking memory takes longer than a small model does.
  RETURN_IF_ERROR(EnsureLanes(std::max<int64_t>(num_chunks, 1)));
  std::atomic<int64_t> next_chunk{0};
  std::atomic<cudaError_t> failure{cudaSuccess};
  const auto work = [&](Lane& lane) {
    const auto check = [&](cudaError_t error) {
      if (error != cudaSuccess) failure.store(error);
    };
    check(cudaSetDevice(ordinal_));
    for (int turn = 0; failure.load() == cudaSuccess; turn ^= 1) {
      const int64_t chunk = next_chunk.fetch_add(1);
      if (chunk >= num_chunks) break;
      const int64_t begin = chunk * rows_per_chunk;
      const int64_t end = std::min(num_rows, begin + rows_per_chunk);
      check(cudaEventSynchronize(lane.copied[turn]));
      std::byte* buffer = lane.buffers[turn].get();
      fill(begin, end, buffer);
      check(cudaMemcpyAsync(device + begin * row_bytes, buffer,
                            static_cast<size_t>((end - begin) * row_bytes), cudaMemcpyHostToDevice,
                            lane.stream));
      check(cudaEventRecord(lane.copied[turn], lane.stream));
    }
    check(cudaStreamSynchronize(lane.stream));
  };
  std::vector<std::thread> threads;
  const auto helpers = std::min<int64_t>(num_chunks, static_cast<int64_t>(lanes_.size())) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    threads.emplace_back(work, std::ref(lanes_[static_cast<size_t>(i) + 1]));
  }
  work(lanes_[0]);
  for (std::thread& thread : threads) thread.join();
  return CudaStatus(failure.load(), "uploading weights");
}

}  // namespace baton
