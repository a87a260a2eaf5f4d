// What the roles of the wgmma kernel share: tile shapes, shared memory, and the hand-over between
// them. prefill_attention_sm90.cuh has the whole picture.
#ifndef BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_SHARED_CUH_
#define BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_SHARED_CUH_

#include <cstdint>

#include "kernels/prefill_attention/prefill_attention_cuda.h"
#include "kernels/prefill_attention/prefill_tile.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace baton::kernels {

template <HalfType kTypeOf, int kDimOf, bool kSoftcapOf>
struct Sm90Config {
  static constexpr HalfType kType = kTypeOf;
  static constexpr int kDim = kDimOf;
  static constexpr bool kSoftcap = kSoftcapOf;
  // Warpgroups of 64 query rows. Three leave too few registers for more than head_dim 64.
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kConsumers;
  // Of one step; as many as the registers hold.
  static constexpr int kKeys = kDim > 128 || (kDim == 64 && kSoftcap) ? 64 : 128;
  static constexpr int kColumns = kDim / 64;  // Of 64 elements: a swizzled row of 128 bytes.
  static constexpr int kKeyStages = kDim == 64 ? 4 : 3;
  static constexpr int kValueStages = kDim == 64 ? 4 : 2;
  static constexpr int kQueries = kDim > 128 ? 1 : 2;  // Query tiles in flight.
  // Key tiles at the end of a work item that a consumer may see nothing of.
  static constexpr int kSkipsMax = (kRows - 64 + kKeys - 1) / kKeys;
  static_assert(kSkipsMax < kValueStages);
  static constexpr int kItems = 4;  // Work items under way to the consumers.
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;

  static constexpr uint32_t kQueryBytes = 64 * kDim * 2;  // Of one consumer.
  static constexpr uint32_t kKeyBytes = kKeys * kDim * 2;
  static constexpr uint32_t kKeyColumnBytes = kKeys * 128;
};

// A tile as the consumers need it; num_tokens 0 ends the work.
struct Sm90Item {
  PrefillTile tile;
  int32_t key_begin;   // First key that any row sees.
  int32_t first_tile;  // Key tiles, visited from last to first.
  int32_t last_tile;
};

// Every full barrier is waited for by readers, every empty one by the writer, with the parity of
// the number of times its slot has gone round.
template <typename C>
struct Sm90Barriers {
  uint64_t key_full[C::kKeyStages];
  uint64_t key_empty[C::kKeyStages];
  uint64_t value_full[C::kValueStages];
  uint64_t value_empty[C::kValueStages];
  uint64_t query_full[C::kQueries][C::kConsumers];
  uint64_t query_empty[C::kQueries][C::kConsumers];
  uint64_t item_full[C::kItems];
  uint64_t item_empty[C::kItems];
};

template <typename C>
struct Sm90Shared {
  alignas(1024) uint8_t query[C::kQueries][C::kConsumers][C::kQueryBytes];
  alignas(1024) uint8_t key[C::kKeyStages][C::kKeyBytes];
  alignas(1024) uint8_t value[C::kValueStages][C::kKeyBytes];
  Sm90Barriers<C> barriers;
  Sm90Item items[C::kItems];
};

// Place in a ring of `kSlots`: the slot, and how often the ring has gone round.
template <int kSlots>
struct RingPlace {
  uint32_t slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if constexpr (kSlots == 1) {
      parity ^= 1;
    } else if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Launch parameters: the caller's, and the pool's strides in rows of the tensor map.
struct Sm90Params {
  PrefillAttentionParams p;
  int32_t block_rows;
  int32_t layer_row;
  int32_t head_rows;
  int32_t value_rows;
  int32_t box_rows_log2;
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PREFILL_ATTENTION_PREFILL_SM90_SHARED_CUH_
