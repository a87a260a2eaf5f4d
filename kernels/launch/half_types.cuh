// bf16 and fp16 behind one set of names, for kernels that are templates on the element type.
#ifndef BATON_KERNELS_LAUNCH_HALF_TYPES_CUH_
#define BATON_KERNELS_LAUNCH_HALF_TYPES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels {

template <HalfType kType>
struct HalfTraits;

template <>
struct HalfTraits<HalfType::kBF16> {
  using Element = __nv_bfloat16;
  using Pair = __nv_bfloat162;
  static __device__ __forceinline__ float ToFloat(Element x) { return __bfloat162float(x); }
  static __device__ __forceinline__ float2 ToFloat2(Pair x) { return __bfloat1622float2(x); }
  static __device__ __forceinline__ Element FromFloat(float x) { return __float2bfloat16_rn(x); }
  static __device__ __forceinline__ Pair FromFloat2(float low, float high) {
    return __floats2bfloat162_rn(low, high);
  }
};

template <>
struct HalfTraits<HalfType::kF16> {
  using Element = __half;
  using Pair = __half2;
  static __device__ __forceinline__ float ToFloat(Element x) { return __half2float(x); }
  static __device__ __forceinline__ float2 ToFloat2(Pair x) { return __half22float2(x); }
  static __device__ __forceinline__ Element FromFloat(float x) { return __float2half_rn(x); }
  static __device__ __forceinline__ Pair FromFloat2(float low, float high) {
    return __floats2half2_rn(low, high);
  }
};

// The bits of a pair in one register, as mma and wgmma take them.
template <HalfType kType>
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const typename HalfTraits<kType>::Pair pair = HalfTraits<kType>::FromFloat2(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <HalfType kType>
__device__ __forceinline__ float2 UnpackPair(uint32_t bits) {
  return HalfTraits<kType>::ToFloat2(
      *reinterpret_cast<const typename HalfTraits<kType>::Pair*>(&bits));
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_HALF_TYPES_CUH_
