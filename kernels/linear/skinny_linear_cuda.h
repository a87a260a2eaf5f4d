// Products of few rows with stored 16-bit weights on the GPU: y[m, n] = sum_k x[m, k] w[n, k] +
// bias[n], 1 to 256 rows, bound by reading w once (up to some 128 rows). Gated: y = silu(gate) *
// up.
//
// A row's result depends neither on the other rows nor on the number of rows (1 to 256): the same
// tiles, the same split along k and the same order of sums serve all of them. Nothing is atomic.
#ifndef BATON_KERNELS_LINEAR_SKINNY_LINEAR_CUDA_H_
#define BATON_KERNELS_LINEAR_SKINNY_LINEAR_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/launch/launch.h"
#include "kernels/linear/skinny_linear_plan.h"

namespace baton::kernels {

inline constexpr int64_t kSkinnyPrefetchBytes = int64_t{8} << 20;

struct SkinnyLinearParams {
  const void* x = nullptr;  // [rows, k] of `type`, aligned to 16 bytes.
  int64_t x_stride = 0;     // Elements from a row to the next; a multiple of 8.
  // [n, k] of `type`, contiguous, aligned to 16 bytes. Gated: [2n, k], gate and up interleaved in
  // groups of 8 rows: gate 0-7, up 0-7, gate 8-15, up 8-15, ...
  const void* w = nullptr;
  const void* bias = nullptr;  // In the order of w's rows, of `type`; null: none.
  void* y = nullptr;           // [rows, n], of `type`, or float32 when y_is_f32.
  int64_t y_stride = 0;        // Elements from a row to the next.
  bool y_is_f32 = false;
  bool gated = false;
  HalfType type = HalfType::kBF16;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t num_sms = 0;  // Multiprocessors of the device (132 on H200).
  // At least SkinnyLinearWorkspaceBytes, aligned to 256; contents do not matter.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // At least SkinnyLinearCounterBytes, zero before the first use; kernels leave them zero. Launches
  // of one stream may share counters and workspace; streams may not.
  uint32_t* counters = nullptr;
  // Bytes of w (in all) that are brought to L2 before the kernel before this one has ended, beyond
  // what fits in the ring. The default covers the gap between two products; more pays after kernels
  // that leave the memory idle for longer (attention with few tokens).
  int64_t l2_prefetch_bytes = kSkinnyPrefetchBytes;
};

// Bytes that suffice for every n and k, and any number of rows up to `rows`.
size_t SkinnyLinearWorkspaceBytes(int32_t rows, int32_t num_sms);
size_t SkinnyLinearCounterBytes(int32_t num_sms);

// ERRORS: kUnsupported: not SkinnyLinearSupports; kInvalidArgument: null, misaligned.
KernelStatus SkinnyLinear(const SkinnyLinearParams& p, CudaStream stream, LaunchOrder order);

// The same with a configuration of the caller's, for benches.
KernelStatus SkinnyLinearWithConfig(const SkinnyLinearParams& p, const SkinnyLinearConfig& config,
                                    CudaStream stream, LaunchOrder order);

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LINEAR_SKINNY_LINEAR_CUDA_H_
