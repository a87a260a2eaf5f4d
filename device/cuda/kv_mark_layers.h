// After which layers of a step it is marked that their KV is written (kv_marks.h).
#ifndef BATON_DEVICE_CUDA_KV_MARK_LAYERS_H_
#define BATON_DEVICE_CUDA_KV_MARK_LAYERS_H_

#include <cstdint>
#include <vector>

namespace baton {

// Marks of a step: each costs the overlap of two kernels.
inline constexpr int32_t kKvMarksMax = 8;

// Numbers of layers, ascending, the last of them num_layers. Closer towards the end: what is marked
// late has little time left to travel. Behind the last layer's KV come its attention, its products
// and the head. REQUIRES: num_layers >= 1.
std::vector<int32_t> KvMarkLayers(int32_t num_layers);

}  // namespace baton

#endif  // BATON_DEVICE_CUDA_KV_MARK_LAYERS_H_
