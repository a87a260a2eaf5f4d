// Marks functions that host code and kernels share. Such a function must round the same way on both
// sides: fused multiply-adds are written as std::fma, and no product may be added elsewhere
// (nvcc would fuse the two; the host does not).
#ifndef BATON_KERNELS_LAUNCH_HOST_DEVICE_H_
#define BATON_KERNELS_LAUNCH_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define BATON_HOST_DEVICE __host__ __device__
#else
#define BATON_HOST_DEVICE
#endif

#endif  // BATON_KERNELS_LAUNCH_HOST_DEVICE_H_
