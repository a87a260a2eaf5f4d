// Launching, for .cu files: one call that sets cluster size, dynamic shared memory and order.
#ifndef BATON_KERNELS_LAUNCH_LAUNCH_CUH_
#define BATON_KERNELS_LAUNCH_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "kernels/launch/launch.h"

namespace baton::kernels {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  CudaStream stream = nullptr;
  LaunchOrder order = LaunchOrder::kAfter;
  int cluster = 1;  // Blocks of a cluster along x.
};

// Kernels that take more than 48 KiB of shared memory call this once, before their first launch
// (it is cheap, and legal during capture).
template <typename... Params>
KernelStatus AllowSharedBytes(void (*kernel)(Params...), size_t bytes) {
  if (bytes <= 48 * 1024) return KernelStatus::kOk;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  return error == cudaSuccess ? KernelStatus::kOk : KernelStatus::kLaunchFailed;
}

template <typename... Params, typename... Args>
KernelStatus Launch(const LaunchConfig& config, void (*kernel)(Params...), Args&&... args) {
  const KernelStatus allowed = AllowSharedBytes(kernel, config.shared_bytes);
  if (allowed != KernelStatus::kOk) return allowed;
  if (config.cluster > 8) {  // More than every GPU promises; sm_90 has GPCs of 16 and more.
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return KernelStatus::kLaunchFailed;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = config.stream;
  cudaLaunchAttribute attributes[2];
  launch.attrs = attributes;
  if (config.order == LaunchOrder::kOverlapped) {
    cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(config.cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  const cudaError_t error = cudaLaunchKernelEx(&launch, kernel, std::forward<Args>(args)...);
  return error == cudaSuccess ? KernelStatus::kOk : KernelStatus::kLaunchFailed;
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_LAUNCH_CUH_
