// Arithmetic between token positions and blocks. Block i of a sequence's block table holds the KV
// of positions [i * block_tokens, (i + 1) * block_tokens). Pure functions.
#ifndef BATON_ENGINE_KVCACHE_BLOCK_TABLE_H_
#define BATON_ENGINE_KVCACHE_BLOCK_TABLE_H_

#include <cstdint>

#include "common/base/check.h"

namespace baton {

// Blocks that hold the KV of `num_tokens` positions from 0.
inline int32_t BlocksForTokens(int64_t num_tokens, int32_t block_tokens) {
  CHECK_GT(block_tokens, 0);
  CHECK_GE(num_tokens, 0);
  return static_cast<int32_t>((num_tokens + block_tokens - 1) / block_tokens);
}

// Blocks of which every slot lies below `num_tokens`: those that will not be written again.
inline int32_t FullBlocks(int64_t num_tokens, int32_t block_tokens) {
  CHECK_GT(block_tokens, 0);
  CHECK_GE(num_tokens, 0);
  return static_cast<int32_t>(num_tokens / block_tokens);
}

}  // namespace baton

#endif  // BATON_ENGINE_KVCACHE_BLOCK_TABLE_H_
