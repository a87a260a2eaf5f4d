#include "device/cuda/matmul/matmul_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton::cuda {
namespace {

// Rounds in which the candidates of a product are timed in turn, and how far behind the best one
// may be, by its mean, to be in the next: at first by more than a clock that falls in mid-round
// does.
constexpr double kStaysWithin[] = {1.30, 1.20, 1.12, 1.08, 1.06, 1.06, 1.06};
// Products of so many rows run at the power limit, where what is quicker at one clock is not always
// quicker in a step: 8B prefill with the 112x128 tile, 3 % ahead in turn for the output and down
// products, was 1.6 % slower than before, and as fast as before with 256x128. Of algorithms this
// close the library's order decides; it begins with large tiles, which move fewer bytes.
constexpr int32_t kPowerBoundRows = 1024;
constexpr double kPowerBoundTie = 1.04;
constexpr size_t kFlushBytes = size_t{128} << 20;  // Twice the L2.

absl::Status CudaError(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

class EventPair {
 public:
  EventPair() {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~EventPair() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;
  cudaEvent_t begin() const { return begin_; }
  cudaEvent_t end() const { return end_; }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

absl::Status FillRandom(void* data, int64_t count, kernels::HalfType type,
                        kernels::CudaStream stream) {
  const kernels::KernelStatus status = kernels::RandomFillCuda(
      {.out = data, .count = count, .scale = 0.5f, .seed = 1, .type = type}, stream);
  if (status == kernels::KernelStatus::kOk) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("random fill: ", kernels::KernelStatusName(status)));
}

absl::StatusOr<std::shared_ptr<void>> Allocate(size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes to time products with"));
  }
  return std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); });
}

// A candidate that the device refuses after all.
constexpr double kRefused = std::numeric_limits<double>::infinity();

// Microseconds with a cold L2, or kRefused. ERRORS: Internal: the device.
absl::StatusOr<double> TimeOnce(const MatmulLibrary& library, const MatmulParams& params,
                                const MatmulChoice& choice, void* flush, const EventPair& events,
                                kernels::CudaStream stream) {
  RETURN_IF_ERROR(CudaError(cudaMemsetAsync(flush, 0, kFlushBytes, stream), "flush"));
  RETURN_IF_ERROR(CudaError(cudaEventRecord(events.begin(), stream), "event"));
  if (!library.Run(params, choice, stream).ok()) return kRefused;
  RETURN_IF_ERROR(CudaError(cudaEventRecord(events.end(), stream), "event"));
  RETURN_IF_ERROR(CudaError(cudaEventSynchronize(events.end()), "timing a product"));
  float ms = 0;
  RETURN_IF_ERROR(CudaError(cudaEventElapsedTime(&ms, events.begin(), events.end()), "event"));
  return ms * 1e3;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatmulTimer>> MatmulTimer::Create(const MatmulLibrary& library,
                                                                 const MatmulShape& shape,
                                                                 int32_t rows_max, const void* w,
                                                                 kernels::CudaStream stream) {
  auto timer = std::make_unique<MatmulTimer>(Private{}, library, shape, stream);
  const auto rows = static_cast<size_t>(rows_max);
  const auto n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  timer->w_ = w;
  if (w == nullptr) {
    ASSIGN_OR_RETURN(timer->own_w_, Allocate(n * k * 2));
    RETURN_IF_ERROR(
        FillRandom(timer->own_w_.get(), shape.n * int64_t{shape.k}, shape.type, stream));
    timer->w_ = timer->own_w_.get();
  }
  ASSIGN_OR_RETURN(timer->x_, Allocate(rows * k * 2));
  ASSIGN_OR_RETURN(timer->y_, Allocate(rows * n * (shape.y_is_f32 ? 4 : 2)));
  ASSIGN_OR_RETURN(timer->bias_, Allocate(n * 2));
  ASSIGN_OR_RETURN(timer->flush_, Allocate(kFlushBytes));
  RETURN_IF_ERROR(FillRandom(timer->x_.get(), static_cast<int64_t>(rows * k), shape.type, stream));
  RETURN_IF_ERROR(FillRandom(timer->bias_.get(), shape.n, shape.type, stream));
  return timer;
}

MatmulTimer::~MatmulTimer() { cudaStreamSynchronize(stream_); }

absl::StatusOr<MatmulChoice> MatmulTimer::Best(int32_t rows,
                                               const std::vector<MatmulChoice>& candidates,
                                               TimePoint deadline) const {
  const MatmulParams params = {.shape = shape_,
                               .rows = rows,
                               .x = x_.get(),
                               .x_stride = shape_.k,
                               .w = w_,
                               .bias = bias_.get(),
                               .y = y_.get(),
                               .y_stride = shape_.n};
  struct Runner {
    const MatmulChoice* choice;
    double us = 0;  // Of all rounds.
  };
  const EventPair events;
  std::vector<Runner> runners;
  for (const MatmulChoice& candidate : candidates) {
    if (!runners.empty() && Clock::Real()->Now() > deadline) break;
    // Loads code. A candidate that the device refuses is no candidate.
    if (library_.Run(params, candidate, stream_).ok()) runners.push_back({.choice = &candidate});
  }
  int rounds = 0;
  for (const double stays_within : kStaysWithin) {
    if (rounds > 0 && (runners.size() <= 1 || Clock::Real()->Now() > deadline)) break;
    for (Runner& runner : runners) {
      ASSIGN_OR_RETURN(const double us,
                       TimeOnce(library_, params, *runner.choice, flush_.get(), events, stream_));
      runner.us += us;
    }
    ++rounds;
    std::erase_if(runners, [](const Runner& r) { return r.us == kRefused; });
    std::stable_sort(runners.begin(), runners.end(),
                     [](const Runner& a, const Runner& b) { return a.us < b.us; });
    std::erase_if(runners,
                  [&](const Runner& r) { return r.us > stays_within * runners.front().us; });
  }
  if (runners.empty()) return absl::UnimplementedError("no algorithm of cuBLASLt runs");
  const double tie = rows >= kPowerBoundRows ? kPowerBoundTie : 1;
  std::erase_if(runners, [&](const Runner& r) { return r.us > tie * runners.front().us; });
  const Runner& chosen =
      *std::min_element(runners.begin(), runners.end(),
                        [](const Runner& a, const Runner& b) { return a.choice < b.choice; });
  MatmulChoice choice = *chosen.choice;
  choice.us = chosen.us / rounds;
  return choice;
}

}  // namespace baton::cuda
