// What the CUDA launchers of all kernel families share. Needs neither CUDA nor Abseil, so headers
// of kernels compile anywhere and .cu files stay light.
//
// A launcher checks what it was given, picks a configuration, launches and returns. It never
// allocates, never waits, never reads the environment, and may be captured into a graph. All
// pointers are device pointers unless a comment says otherwise.
#ifndef BATON_KERNELS_LAUNCH_LAUNCH_H_
#define BATON_KERNELS_LAUNCH_LAUNCH_H_

#include <cstdint>

struct CUstream_st;

namespace baton::kernels {

using CudaStream = CUstream_st*;

enum class KernelStatus : uint8_t {
  kOk,
  kInvalidArgument,  // A null or misaligned pointer, a negative size: a bug of the caller.
  kUnsupported,      // A shape or type that this kernel does not do.
  kLaunchFailed,     // The runtime refused; cudaPeekAtLastError has the reason.
};

constexpr const char* KernelStatusName(KernelStatus status) {
  switch (status) {
    case KernelStatus::kOk:
      return "ok";
    case KernelStatus::kInvalidArgument:
      return "invalid argument";
    case KernelStatus::kUnsupported:
      return "unsupported shape or type";
    case KernelStatus::kLaunchFailed:
      return "launch failed";
  }
  return "?";
}

// Element type of weights, activations and KV on the GPU. Arithmetic accumulates in float32.
enum class HalfType : uint8_t { kBF16, kF16 };

// How a launch follows the one before it in its stream.
enum class LaunchOrder : uint8_t {
  kAfter,  // Starts when the one before has ended.
  // Programmatic dependent launch: may start while the one before ends; the kernel itself waits
  // (DependencyWait of ptx/grid_dependency.cuh) before it touches what another kernel writes.
  kOverlapped,
};

// The KV pool as CUDA kernels see it: element strides as in device/kv_layout.h, 16-bit elements.
struct PagedKv16 {
  void* base = nullptr;      // K of block 0, layer 0, head 0, token 0.
  int64_t block_stride = 0;  // From a block to the next.
  int64_t layer_offset = 0;  // Of the layer, within a block.
  int64_t head_stride = 0;   // From a KV head to the next: 2 * block_tokens * head_dim.
  int64_t value_offset = 0;  // From K to V of the same head: block_tokens * head_dim.
  int32_t block_tokens_log2 = 0;
  int32_t head_dim = 0;
  int32_t num_kv_heads = 0;
  int32_t num_blocks = 0;
  HalfType type = HalfType::kBF16;
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_LAUNCH_H_
