// Reads memory for the sake of what that does to the cache.
#ifndef BATON_KERNELS_LAUNCH_READ_MEMORY_H_
#define BATON_KERNELS_LAUNCH_READ_MEMORY_H_

#include <cstdint>

#include "kernels/launch/launch.h"

namespace baton::kernels::testing {

// Reads [bytes] of device memory, a multiple of 16. Afterwards the L2 cache holds the end of it and
// no dirty line of anything else: a memset would leave the cache full of dirty lines, which the
// next kernel would have to wait for. `sink` [1] is written in a case that does not happen
// when the memory holds zeros.
KernelStatus ReadMemory(const void* memory, int64_t bytes, uint32_t* sink, CudaStream stream);

}  // namespace baton::kernels::testing

#endif  // BATON_KERNELS_LAUNCH_READ_MEMORY_H_
