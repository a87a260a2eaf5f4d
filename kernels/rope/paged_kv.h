// How kernels see the KV pool: a base pointer and strides, in elements. One block holds
// [num_layers, num_kv_heads, 2 (K, V), block_tokens, head_dim]; block i starts at i * block_stride.
// A slot is block * block_tokens + position within the block.
#ifndef BATON_KERNELS_ROPE_PAGED_KV_H_
#define BATON_KERNELS_ROPE_PAGED_KV_H_

#include <cstdint>

namespace baton::kernels {

// One layer of a pool, float32.
struct PagedKvLayer {
  float* base = nullptr;     // K of block 0, this layer, head 0, token 0.
  int64_t block_stride = 0;  // From a block to the next.
  int64_t head_stride = 0;   // From a KV head to the next: 2 * block_tokens * head_dim.
  int64_t value_offset = 0;  // From K to V of the same head: block_tokens * head_dim.
  int32_t block_tokens_log2 = 0;
  int32_t head_dim = 0;

  // K of one token in one block; V is value_offset further.
  float* Key(int64_t block, int64_t head, int64_t token_in_block) const {
    return base + block * block_stride + head * head_stride + token_in_block * head_dim;
  }
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_ROPE_PAGED_KV_H_
