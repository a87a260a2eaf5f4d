// Eight elements at a time as float32: what one thread of a memory-bound kernel moves per step. A
// 16-bit vector is one access of 16 bytes, a float32 vector two.
#ifndef BATON_KERNELS_LAUNCH_VECTORS8_CUH_
#define BATON_KERNELS_LAUNCH_VECTORS8_CUH_

#include <cstdint>

#include "kernels/launch/half_types.cuh"
#include "kernels/launch/launch.h"

namespace baton::kernels {

struct Floats8 {
  float v[8];
};

// REQUIRES for all: `p` is aligned to 16 bytes.
__device__ __forceinline__ Floats8 LoadFloats8(const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  const float4 b = *reinterpret_cast<const float4*>(p + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void StoreFloats8(const Floats8& x, float* p) {
  *reinterpret_cast<float4*>(p) = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
  *reinterpret_cast<float4*>(p + 4) = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}

template <HalfType kType>
__device__ __forceinline__ Floats8 WidenHalves8(const uint4& bits) {
  const float2 a = UnpackPair<kType>(bits.x);
  const float2 b = UnpackPair<kType>(bits.y);
  const float2 c = UnpackPair<kType>(bits.z);
  const float2 d = UnpackPair<kType>(bits.w);
  return {{a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}};
}
template <HalfType kType>
__device__ __forceinline__ Floats8 LoadHalves8(const void* p) {
  return WidenHalves8<kType>(*static_cast<const uint4*>(p));
}
template <HalfType kType>
__device__ __forceinline__ uint4 NarrowHalves8(const Floats8& x) {
  return make_uint4(PackPair<kType>(x.v[0], x.v[1]), PackPair<kType>(x.v[2], x.v[3]),
                    PackPair<kType>(x.v[4], x.v[5]), PackPair<kType>(x.v[6], x.v[7]));
}
template <HalfType kType>
__device__ __forceinline__ void StoreHalves8(const Floats8& x, void* p) {
  *static_cast<uint4*>(p) = NarrowHalves8<kType>(x);
}

// On the host: whether vectors of 16 bytes may start at `p`.
inline bool IsAligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace baton::kernels

#endif  // BATON_KERNELS_LAUNCH_VECTORS8_CUH_
