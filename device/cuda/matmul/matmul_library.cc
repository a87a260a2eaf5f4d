#include "device/cuda/matmul/matmul_library.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace baton::cuda {
namespace {

absl::Status CublasError(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": cuBLASLt status ", static_cast<int>(status)));
}
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

// The product of contiguous rows.
MatmulParams ShapeParams(const MatmulShape& shape, int32_t rows) {
  return {.shape = shape, .rows = rows, .x_stride = shape.k, .y_stride = shape.n};
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

}  // namespace

absl::StatusOr<std::unique_ptr<MatmulLibrary>> MatmulLibrary::Create(
    const MatmulLibraryOptions& options) {
  auto library = std::make_unique<MatmulLibrary>(Private{}, options);
  if (cublasLtCreate(&library->handle_) != CUBLAS_STATUS_SUCCESS) {
    return absl::UnavailableError("cuBLASLt cannot be initialised");
  }
  library->version_ = static_cast<int64_t>(cublasLtGetVersion());
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&library->num_sms_, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) {
    return absl::InternalError(absl::StrCat("multiprocessors: ", cudaGetErrorString(error)));
  }
  return library;
}

MatmulLibrary::~MatmulLibrary() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<std::vector<MatmulChoice>> MatmulLibrary::Propose(const MatmulShape& shape,
                                                                 int32_t rows,
                                                                 int32_t count) const {
  if (shape.k % 8 != 0 || shape.k <= 0 || shape.n <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("matmul of k = ", shape.k));
  }
  Problem problem;
  MatmulParams params = ShapeParams(shape, rows);
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
    set(attribute, kMatmulAlignmentBytes);
  }
  if (options_.deterministic) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE));
  }
  RETURN_IF_ERROR(CublasError(status, "preferences"));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &problem.matmul, &problem.w, &problem.x, &problem.y,
                                     &problem.y, &preference, count, results.data(), &found);
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
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for ", rows, " x ",
                                                 shape.n, " x ", shape.k, ", status ",
                                                 static_cast<int>(status)));
  }
  return choices;
}

bool MatmulLibrary::Accepts(const MatmulShape& shape, int32_t rows, MatmulChoice* choice) const {
  Problem problem;
  MatmulParams params = ShapeParams(shape, rows);
  params.bias = options_.workspace;
  if (!Describe(params, &problem).ok()) return false;
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(*choice);
  if (options_.deterministic && AddsInPlace(algorithm)) return false;
  cublasLtMatmulHeuristicResult_t result;
  if (cublasLtMatmulAlgoCheck(handle_, &problem.matmul, &problem.w, &problem.x, &problem.y,
                              &problem.y, &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > options_.workspace_bytes) {
    return false;
  }
  choice->workspace_bytes = static_cast<int64_t>(result.workspaceSize);
  return true;
}

void MatmulLibrary::AddReshaped(const MatmulShape& shape, int32_t rows,
                                std::vector<MatmulChoice>* choices) const {
  const cublasLtMatmulAlgo_t first = AlgorithmOf(choices->front());
  for (const TileCluster& tried : kTried) {
    cublasLtMatmulAlgo_t algorithm = first;
    if (!Reshape(tried, &algorithm)) continue;
    MatmulChoice choice;
    std::memcpy(choice.algorithm.data(), &algorithm, sizeof(algorithm));
    if (!Accepts(shape, rows, &choice)) continue;
    const bool known = std::any_of(choices->begin(), choices->end(), [&](const auto& other) {
      return other.algorithm == choice.algorithm;
    });
    if (!known) choices->push_back(choice);
  }
}

absl::Status MatmulLibrary::Run(const MatmulParams& params, const MatmulChoice& choice,
                                kernels::CudaStream stream) const {
  Problem problem;
  RETURN_IF_ERROR(Describe(params, &problem));
  const cublasLtMatmulAlgo_t algorithm = AlgorithmOf(choice);
  const float one = 1;
  const float zero = 0;
  return CublasError(
      cublasLtMatmul(handle_, &problem.matmul, &one, params.w, &problem.w, params.x, &problem.x,
                     &zero, params.y, &problem.y, params.y, &problem.y, &algorithm,
                     options_.workspace, options_.workspace_bytes, stream),
      "cublasLtMatmul");
}

}  // namespace baton::cuda
