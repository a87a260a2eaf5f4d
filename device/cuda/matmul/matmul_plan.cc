#include "device/cuda/matmul/matmul_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "device/cuda/matmul/matmul_timer.h"

namespace baton::cuda {
namespace {

absl::Status CheckParams(const MatmulParams& p) {
  const auto misaligned = [](const void* pointer) {
    return pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % kMatmulAlignmentBytes != 0;
  };
  if (misaligned(p.x) || misaligned(p.w) || p.y == nullptr || p.x_stride < p.shape.k ||
      p.x_stride % 8 != 0 || p.y_stride < p.shape.n || (p.shape.bias && p.bias == nullptr)) {
    return absl::InvalidArgumentError("matmul: a pointer or stride");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatmulPlans>> MatmulPlans::Create(
    const MatmulPlansOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<MatmulLibrary> library, MatmulLibrary::Create(options.library));
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
          .deterministic = options_.library.deterministic,
          .num_sms = library_->num_sms(),
          .library_version = library_->version()};
}

absl::Status MatmulPlans::Tune(const MatmulShape& shape, const std::vector<int32_t>& buckets,
                               const void* w, TimePoint deadline, kernels::CudaStream stream) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MatmulTimer> timer,
                   MatmulTimer::Create(*library_, shape, buckets.back(), w, stream));
  // Prefill chunks first: they gain most, should the time not suffice for all.
  for (auto it = buckets.rbegin(); it != buckets.rend(); ++it) {
    if (Clock::Real()->Now() > deadline) break;
    ASSIGN_OR_RETURN(std::vector<MatmulChoice> candidates,
                     library_->Propose(shape, *it, options_.candidates_max));
    library_->AddReshaped(shape, *it, &candidates);
    ASSIGN_OR_RETURN(const MatmulChoice best, timer->Best(*it, candidates, deadline));
    cache_.Put(KeyOf(shape, *it), best);
    cache_changed_ = true;
  }
  return absl::OkStatus();
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
      if (!library_->Accepts(shape, bucket, &checked)) {
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
    ASSIGN_OR_RETURN(const std::vector<MatmulChoice> candidates,
                     library_->Propose(shape, bucket, 1));
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
  return library_->Run(params, *choice, stream);
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
