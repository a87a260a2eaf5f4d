// A view of the memory of one KV pool, for those that move whole blocks: block b is the contiguous
// range [base + b * block_bytes, base + (b + 1) * block_bytes), and layer l of it the l-th of
// num_layers equal parts. What lies inside a layer is the device's business. Plain value; does not
// own the memory.
#ifndef BATON_ENGINE_KVCACHE_KV_MEMORY_H_
#define BATON_ENGINE_KVCACHE_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/strong_id.h"

namespace baton {

struct KvMemory {
  std::byte* base = nullptr;
  uint64_t block_bytes = 0;
  int32_t num_blocks = 0;
  int32_t block_tokens = 0;
  int32_t num_layers = 1;

  // REQUIRES: 0 <= block < num_blocks.
  absl::Span<std::byte> Block(BlockId block) const {
    CHECK(block.value >= 0 && block.value < num_blocks)
        << "block " << block << " of a pool of " << num_blocks;
    return absl::MakeSpan(base + static_cast<uint64_t>(block.value) * block_bytes, block_bytes);
  }
  uint64_t layer_bytes() const {
    CHECK_EQ(block_bytes % static_cast<uint64_t>(num_layers), 0u);
    return block_bytes / static_cast<uint64_t>(num_layers);
  }
};

}  // namespace baton

#endif  // BATON_ENGINE_KVCACHE_KV_MEMORY_H_
