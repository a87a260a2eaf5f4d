// Which cuBLASLt algorithm to use for which product, in memory and in a file. Knows no CUDA: an
// algorithm is 64 opaque bytes that mean something to one version of the library only, so the
// version is part of the key, and whoever reads a file checks each algorithm with the library
// before use.
//
// The file has a line of JSON for each product, each with a checksum. A file that another program
// wrote, or a damaged line, is skipped; the products concerned are tuned again. So are lines of an
// earlier way of timing ("timing" counts them).
//
// Thread-compatible.
#ifndef BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_CACHE_H_
#define BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::cuda {

struct MatmulKey {
  int32_t rows = 0;  // The bucket: most rows of the product.
  int32_t n = 0;
  int32_t k = 0;
  bool bf16 = true;  // Else fp16.
  bool out_f32 = false;
  bool bias = false;
  bool deterministic = false;
  int32_t num_sms = 0;
  int64_t library_version = 0;  // cublasLtGetVersion()

  friend bool operator==(const MatmulKey&, const MatmulKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MatmulKey& key) {
    return H::combine(std::move(h), key.rows, key.n, key.k, key.bf16, key.out_f32, key.bias,
                      key.deterministic, key.num_sms, key.library_version);
  }
};

struct MatmulChoice {
  std::array<uint64_t, 8> algorithm = {};  // cublasLtMatmulAlgo_t
  int64_t workspace_bytes = 0;
  double us = 0;  // Measured; 0: the library's first proposal, not measured.

  friend bool operator==(const MatmulChoice&, const MatmulChoice&) = default;
};

class MatmulPlanCache {
 public:
  const MatmulChoice* Find(const MatmulKey& key) const;  // Null: unknown.
  void Put(const MatmulKey& key, const MatmulChoice& choice) { choices_[key] = choice; }
  void Erase(const MatmulKey& key) { choices_.erase(key); }
  size_t size() const { return choices_.size(); }

  // Adds the products of `text`; returns how many lines it skipped.
  int Parse(absl::string_view text);
  // Measured products only, sorted, so that equal caches give equal files.
  std::string Serialise() const;

  // Returns the number of skipped lines. ERRORS: NotFound: no such file; Unavailable: unreadable.
  absl::StatusOr<int> ReadFile(const std::string& path);
  // Replaces the file in one step. ERRORS: Unavailable: the file system refused.
  absl::Status WriteFile(const std::string& path) const;

 private:
  absl::flat_hash_map<MatmulKey, MatmulChoice> choices_;
};

}  // namespace baton::cuda

#endif  // BATON_DEVICE_CUDA_MATMUL_MATMUL_PLAN_CACHE_H_
