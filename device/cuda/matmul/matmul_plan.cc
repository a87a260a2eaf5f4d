#include "device/cuda/matmul/matmul_plan.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kernels/random_fill/random_fill_cuda.h"

namespace baton::cuda {
namespace {

constexpr uint32_t kAlignmentBytes = 16;
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

absl::Status CublasError(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": cuBLASLt status ", static_cast<int>(status)));
}
absl::Status CudaError(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

class DeviceBuffer {
 public:
  static absl::StatusOr<DeviceBuffer> Allocate(size_t bytes) {
    DeviceBuffer buffer;
    if (cudaMalloc(&buffer.data_, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes to time products with"));
    }
    return buffer;
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  void* get() const { return data_; }

 private:
  DeviceBuffer() = default;
  void* data_ = nullptr;
};

}  // namespace

class MatmulPlans::EventPair {
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

namespace {

// The library counts columns first: y^T [n, rows] = w [n, k] x^T [k, rows], w transposed.
struct Problem {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t w;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
};

template <typename T>
cublasStatus_t Set(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                   const T& value) {
  return cublasLtMatmulDescSetAttribute(matmul, attribute, &value, sizeof(value));
}

// Descriptors live on the stack: nothing is allocated.
absl::Status Describe(const MatmulParams& p, Problem* out) {
  const cudaDataType half = p.shape.type == kernels::HalfType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
  const cudaDataType y_type = p.shape.y_is_f32 ? CUDA_R_32F : half;
  const auto n = static_cast<uint64_t>(p.shape.n);
  const auto k = static_cast<uint64_t>(p.shape.k);
  const auto rows = static_cast<uint64_t>(p.rows);
  cublasStatus_t status = cublasLtMatmulDescInit(&out->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto then = [&status](cublasStatus_t next) {
    if (status == CUBLAS_STATUS_SUCCESS) status = next;
  };
  then(Set(&out->matmul, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (p.shape.bias) {
    then(Set(&out->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    then(Set(&out->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, half));
    then(Set(&out->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
  }
  then(cublasLtMatrixLayoutInit(&out->w, half, k, n, p.shape.k));
  then(cublasLtMatrixLayoutInit(&out->x, half, k, rows, p.x_stride));
  then(cublasLtMatrixLayoutInit(&out->y, y_type, n, rows, p.y_stride));
  return CublasError(status, "describing a product");
}

// Tiles and clusters that were the best of all that the library takes, or close to it, for some
// product of the Llama-3-8B shape at 256 or 4096 rows on an H200, and that its heuristic leaves out
// for others: with 256 rows it proposes none of the best three for the output product.
struct TileCluster {
  cublasLtMatmulTile_t tile;
  cublasLtClusterShape_t cluster;
};
constexpr TileCluster kTried[] = {{CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_CLUSTER_SHAPE_2x1x1},
                                  {CUBLASLT_MATMUL_TILE_64x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_72x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_144x64, CUBLASLT_CLUSTER_SHAPE_1x4x1},
                                  {CUBLASLT_MATMUL_TILE_96x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_96x128, CUBLASLT_CLUSTER_SHAPE_2x1x1},
                                  {CUBLASLT_MATMUL_TILE_104x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_112x128, CUBLASLT_CLUSTER_SHAPE_2x1x1},
                                  {CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_CLUSTER_SHAPE_2x1x1},
                                  {CUBLASLT_MATMUL_TILE_168x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
                                  {CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_CLUSTER_SHAPE_2x1x1}};

// `algorithm` with another tile and cluster, whole along k, in the library's default order.
bool Reshape(const TileCluster& shape, cublasLtMatmulAlgo_t* algorithm) {
  bool ok = true;
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    ok = ok && cublasLtMatmulAlgoConfigSetAttribute(algorithm, attribute, &value, sizeof(value)) ==
                   CUBLAS_STATUS_SUCCESS;
  };
  set(CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<uint32_t>(shape.tile));
  set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<uint16_t>(shape.cluster));
  set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{1});
  set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  set(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{0});
  set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{0});
  return ok;
}

// The product as Prepare sees it: rows of the bucket, contiguous.
MatmulParams BucketParams(const MatmulShape& shape, int32_t bucket) {
  return {.shape = shape, .rows = bucket, .x_stride = shape.k, .y_stride = shape.n};
}

cublasLtMatmulAlgo_t AlgorithmOf(const MatmulChoice& choice) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(choice.algorithm));
  std::memcpy(&algorithm, choice.algorithm.data(), sizeof(algorithm));
  return algorithm;
}

// Splitting k and adding the parts into the output as they arrive: sums in a moving order.
bool AddsInPlace(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                           &scheme, sizeof(scheme),
                                           &written) != CUBLAS_STATUS_SUCCESS) {
    return true;
  }
  return (scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0;
}

absl::Status CheckParams(const MatmulParams& p) {
  const auto misaligned = [](const void* pointer) {
    return pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % kAlignmentBytes != 0;
  };
  if (misaligned(p.x) || misaligned(p.w) || p.y == nullptr || p.x_stride < p.shape.k ||
      p.x_stride % 8 != 0 || p.y_stride < p.shape.n || (p.shape.bias && p.bias == nullptr)) {
    return absl::InvalidArgumentError("matmul: a pointer or stride");
  }
  return absl::OkStatus();
}

absl::Status FillRandom(void* data, int64_t count, kernels::HalfType type,
                        kernels::CudaStream stream) {
  const kernels::KernelStatus status = kernels::RandomFillCuda(
      {.out = data, .count = count, .scale = 0.5f, .seed = 1, .type = type}, stream);
  if (status == kernels::KernelStatus::kOk) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("random fill: ", kernels::KernelStatusName(status)));
}

}  // namespace

struct MatmulPlans::Library {
  ~Library() {
    if (handle != nullptr) cublasLtDestroy(handle);
  }
  cublasLtHandle_t handle = nullptr;
  int32_t num_sms = 0;
  int64_t version = 0;
};

MatmulPlans::MatmulPlans(const MatmulPlansOptions& options, std::unique_ptr<Library> library)
    : options_(options), library_(std::move(library)) {}
MatmulPlans::~MatmulPlans() = default;

absl::StatusOr<std::unique_ptr<MatmulPlans>> MatmulPlans::Create(
    const MatmulPlansOptions& options) {
  auto library = std::make_unique<Library>();
  if (cublasLtCreate(&library->handle) != CUBLAS_STATUS_SUCCESS) {
    return absl::UnavailableError("cuBLASLt cannot be initialised");
  }
  library->version = static_cast<int64_t>(cublasLtGetVersion());
  int device = 0;
  int num_sms = 0;
  RETURN_IF_ERROR(CudaError(cudaGetDevice(&device), "cudaGetDevice"));
  RETURN_IF_ERROR(
      CudaError(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
                "cudaDeviceGetAttribute"));
  library->num_sms = num_sms;
  auto plans = std::unique_ptr<MatmulPlans>(
      new MatmulPlans(options, std::move(library)));  // NOLINT(banned-new): private constructor
  if (options.cache_path.empty()) return plans;
  const absl::StatusOr<int> skipped = plans->cache_.ReadFile(options.cache_path);
  if (!skipped.ok() && skipped.status().code() != absl::StatusCode::kNotFound) {
    LogWarning("cache of matmul plans ignored", {{"error", skipped.status().ToString()}});
  } else if (skipped.ok() && *skipped > 0) {
    LogWarning("cache of matmul plans: lines ignored",
               {{"path", options.cache_path}, {"lines", *skipped}});
  }
  return plans;
}

int32_t MatmulPlans::BucketOf(int32_t rows) const {
  const auto it = std::lower_bound(options_.buckets.begin(), options_.buckets.end(), rows);
  return it == options_.buckets.end() ? options_.buckets.back() : *it;
}

MatmulKey MatmulPlans::KeyOf(const MatmulShape& shape, int32_t bucket) const {
  return {.rows = bucket,
          .n = shape.n,
          .k = shape.k,
          .bf16 = shape.type == kernels::HalfType::kBF16,
          .out_f32 = shape.y_is_f32,
          .bias = shape.bias,
          .deterministic = options_.deterministic,
          .num_sms = library_->num_sms,
          .library_version = library_->version};
}

absl::StatusOr<std::vector<MatmulChoice>> MatmulPlans::Candidates(const MatmulShape& shape,
                                                                  int32_t bucket,
                                                                  int32_t count) const {
  if (shape.k % 8 != 0 || shape.k <= 0 || shape.n <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("matmul of k = ", shape.k));
  }
  Problem problem;
  MatmulParams params = BucketParams(shape, bucket);
  params.bias = options_.workspace;  // Any pointer: the library looks at its alignment.
  RETURN_IF_ERROR(Describe(params, &problem));
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasStatus_t status = cublasLtMatmulPreferenceInit(&preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    if (status != CUBLAS_STATUS_SUCCESS) return;
    status = cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(options_.workspace_bytes));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(attribute, kAlignmentBytes);
  }
  if (options_.deterministic) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE));
  }
  RETURN_IF_ERROR(CublasError(status, "preferences"));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  status = cublasLtMatmulAlgoGetHeuristic(library_->handle, &problem.matmul, &problem.w, &problem.x,
                                          &problem.y, &problem.y, &preference, count,
                                          results.data(), &found);
  std::vector<MatmulChoice> choices;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (options_.deterministic && AddsInPlace(result.algo)) continue;
    MatmulChoice& choice = choices.emplace_back();
    std::memcpy(choice.algorithm.data(), &result.algo, sizeof(result.algo));
    choice.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
  }
  if (choices.empty()) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for ", bucket, " x ",
                                                 shape.n, " x ", shape.k, ", status ",
                                                 static_cast<int>(status)));
  }
  return choices;
}

bool MatmulPlans::Accepts(const MatmulShape& shape, int32_t bucket, MatmulChoice* choice) const {
  Problem problem;
  MatmulParams params = BucketParams(shape, bucket);
  params.bias = options_.workspace;
  if (!Describe(params, &problem).ok()) return false;
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(*choice);
  if (options_.deterministic && AddsInPlace(algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result;
  if (cublasLtMatmulAlgoCheck(library_->handle, &problem.matmul, &problem.w, &problem.x, &problem.y,
                              &problem.y, &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > options_.workspace_bytes) {
    return false;
  }
  choice->workspace_bytes = static_cast<int64_t>(result.workspaceSize);
  return true;
}

absl::Status MatmulPlans::RunChoice(const MatmulParams& params, const MatmulChoice& choice,
                                    kernels::CudaStream stream) const {
  Problem problem;
  RETURN_IF_ERROR(Describe(params, &problem));
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(choice);
  const float one = 1;
  const float zero = 0;
  return CublasError(
      cublasLtMatmul(library_->handle, &problem.matmul, &one, params.w, &problem.w, params.x,
                     &problem.x, &zero, params.y, &problem.y, params.y, &problem.y, &algorithm,
                     options_.workspace, options_.workspace_bytes, stream),
      "cublasLtMatmul");
}

void MatmulPlans::AddReshaped(const MatmulShape& shape, int32_t bucket,
                              std::vector<MatmulChoice>* choices) const {
  const cublasLtMatmulAlgo_t first = AlgorithmOf(choices->front());
  for (const TileCluster& tried : kTried) {
    cublasLtMatmulAlgo_t algorithm = first;
    if (!Reshape(tried, &algorithm)) continue;
    MatmulChoice choice;
    std::memcpy(choice.algorithm.data(), &algorithm, sizeof(algorithm));
    if (!Accepts(shape, bucket, &choice)) continue;
    const bool known = std::any_of(choices->begin(), choices->end(), [&](const auto& other) {
      return other.algorithm == choice.algorithm;
    });
    if (!known) choices->push_back(choice);
  }
}

absl::StatusOr<double> MatmulPlans::TimeOnce(const MatmulParams& params, const MatmulChoice& choice,
                                             void* flush, const EventPair& events,
                                             kernels::CudaStream stream) const {
  RETURN_IF_ERROR(CudaError(cudaMemsetAsync(flush, 0, kFlushBytes, stream), "flush"));
  RETURN_IF_ERROR(CudaError(cudaEventRecord(events.begin(), stream), "event"));
  RETURN_IF_ERROR(RunChoice(params, choice, stream));
  RETURN_IF_ERROR(CudaError(cudaEventRecord(events.end(), stream), "event"));
  RETURN_IF_ERROR(CudaError(cudaEventSynchronize(events.end()), "timing a product"));
  float ms = 0;
  RETURN_IF_ERROR(CudaError(cudaEventElapsedTime(&ms, events.begin(), events.end()), "event"));
  return ms * 1e3;
}

absl::StatusOr<MatmulChoice> MatmulPlans::Measure(const MatmulParams& params,
                                                  const std::vector<MatmulChoice>& candidates,
                                                  void* flush, TimePoint deadline,
                                                  kernels::CudaStream stream) const {
  struct Runner {
    const MatmulChoice* choice;
    double us = 0;  // Of all rounds.
  };
  const EventPair events;
  std::vector<Runner> runners;
  for (const MatmulChoice& candidate : candidates) {
    if (!runners.empty() && Clock::Real()->Now() > deadline) break;
    // Loads code. A candidate that the device refuses is no candidate.
    if (RunChoice(params, candidate, stream).ok()) runners.push_back({.choice = &candidate});
  }
  int rounds = 0;
  for (const double stays_within : kStaysWithin) {
    if (rounds > 0 && (runners.size() <= 1 || Clock::Real()->Now() > deadline)) break;
    for (Runner& runner : runners) {
      ASSIGN_OR_RETURN(const double us, TimeOnce(params, *runner.choice, flush, events, stream));
      runner.us += us;
    }
    ++rounds;
    std::stable_sort(runners.begin(), runners.end(),
                     [](const Runner& a, const Runner& b) { return a.us < b.us; });
    std::erase_if(runners,
                  [&](const Runner& r) { return r.us > stays_within * runners.front().us; });
  }
  if (runners.empty()) return absl::UnimplementedError("no algorithm of cuBLASLt runs");
  const double tie = params.rows >= kPowerBoundRows ? kPowerBoundTie : 1;
  std::erase_if(runners, [&](const Runner& r) { return r.us > tie * runners.front().us; });
  const Runner& chosen =
      *std::min_element(runners.begin(), runners.end(),
                        [](const Runner& a, const Runner& b) { return a.choice < b.choice; });
  MatmulChoice choice = *chosen.choice;
  choice.us = chosen.us / rounds;
  return choice;
}

absl::Status MatmulPlans::Tune(const MatmulShape& shape, const std::vector<int32_t>& buckets,
                               const void* w, TimePoint deadline, kernels::CudaStream stream) {
  const auto rows = static_cast<size_t>(buckets.back());
  const auto n = static_cast<size_t>(shape.n);
  const auto k = static_cast<size_t>(shape.k);
  std::optional<DeviceBuffer> own_w;
  if (w == nullptr) {
    ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(n * k * 2));
    own_w.emplace(std::move(buffer));
    RETURN_IF_ERROR(FillRandom(own_w->get(), shape.n * int64_t{shape.k}, shape.type, stream));
    w = own_w->get();
  }
  ASSIGN_OR_RETURN(const DeviceBuffer x, DeviceBuffer::Allocate(rows * k * 2));
  ASSIGN_OR_RETURN(const DeviceBuffer y,
                   DeviceBuffer::Allocate(rows * n * (shape.y_is_f32 ? 4 : 2)));
  ASSIGN_OR_RETURN(const DeviceBuffer bias, DeviceBuffer::Allocate(n * 2));
  ASSIGN_OR_RETURN(const DeviceBuffer flush, DeviceBuffer::Allocate(kFlushBytes));
  RETURN_IF_ERROR(FillRandom(x.get(), static_cast<int64_t>(rows * k), shape.type, stream));
  RETURN_IF_ERROR(FillRandom(bias.get(), shape.n, shape.type, stream));
  // Prefill chunks first: they gain most, should the time not suffice for all.
  for (auto it = buckets.rbegin(); it != buckets.rend(); ++it) {
    const int32_t bucket = *it;
    if (Clock::Real()->Now() > deadline) break;
    MatmulParams params = BucketParams(shape, bucket);
    params.x = x.get();
    params.w = w;
    params.bias = bias.get();
    params.y = y.get();
    ASSIGN_OR_RETURN(std::vector<MatmulChoice> candidates,
                     Candidates(shape, bucket, options_.candidates_max));
    AddReshaped(shape, bucket, &candidates);
    ASSIGN_OR_RETURN(const MatmulChoice best,
                     Measure(params, candidates, flush.get(), deadline, stream));
    cache_.Put(KeyOf(shape, bucket), best);
    cache_changed_ = true;
  }
  return CudaError(cudaStreamSynchronize(stream), "timing products");
}

absl::Status MatmulPlans::Prepare(const MatmulShape& shape, int32_t rows_max, const void* w,
                                  Duration budget, kernels::CudaStream stream) {
  const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), budget);
  std::vector<int32_t> unknown;
  for (const int32_t bucket : options_.buckets) {
    const MatmulKey key = KeyOf(shape, bucket);
    const MatmulChoice* known = cache_.Find(key);
    if (known != nullptr) {
      MatmulChoice checked = *known;
      if (!Accepts(shape, bucket, &checked)) {
        cache_.Erase(key);
        known = nullptr;
      }
    }
    if (known == nullptr || (known->us == 0 && budget > Duration::zero())) {
      unknown.push_back(bucket);
    }
    if (bucket >= rows_max) break;
  }
  if (unknown.empty()) return absl::OkStatus();
  if (budget > Duration::zero()) {
    const absl::Status tuned = Tune(shape, unknown, w, deadline, stream);
    if (absl::IsResourceExhausted(tuned)) {
      LogWarning("products are not timed",
                 {{"n", shape.n}, {"k", shape.k}, {"why", tuned.ToString()}});
    } else {
      RETURN_IF_ERROR(tuned);
    }
  }
  for (const int32_t bucket : unknown) {
    if (cache_.Find(KeyOf(shape, bucket)) != nullptr) continue;
    ASSIGN_OR_RETURN(const std::vector<MatmulChoice> candidates, Candidates(shape, bucket, 1));
    cache_.Put(KeyOf(shape, bucket), candidates.front());
  }
  return absl::OkStatus();
}

absl::Status MatmulPlans::Run(const MatmulParams& params, kernels::CudaStream stream) {
  if (params.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckParams(params));
  const int32_t bucket = BucketOf(params.rows);
  const MatmulKey key = KeyOf(params.shape, bucket);
  const MatmulChoice* choice = cache_.Find(key);
  if (choice == nullptr) {
    RETURN_IF_ERROR(Prepare(params.shape, bucket, params.w, Duration::zero(), stream));
    choice = cache_.Find(key);
  }
  return RunChoice(params, *choice, stream);
}

void MatmulPlans::WriteCache() {
  if (options_.cache_path.empty() || !cache_changed_) return;
  const absl::Status status = cache_.WriteFile(options_.cache_path);
  if (!status.ok()) {
    LogWarning("cache of matmul plans not written", {{"error", status.ToString()}});
    return;
  }
  cache_changed_ = false;
}

}  // namespace baton::cuda
