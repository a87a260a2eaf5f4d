// How keys and values lie in memory, and the pool of blocks that hold them:
//   [num_blocks, num_layers, num_kv_heads, 2 (K, V), block_tokens, head_dim]
// A block is one contiguous range, and so is each layer of it and each head of a layer: a hand-over
// moves byte ranges and needs no other knowledge. Keys are stored rotated (RoPE applied).
//
// Thread rule: KvLayout is plain data. KvPool is immutable; who may touch which block is decided by
// the block pool of the engine (engine/kvcache).
#ifndef BATON_DEVICE_KV_LAYOUT_H_
#define BATON_DEVICE_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/dtype.h"
#include "common/base/strong_id.h"

namespace baton {

inline constexpr int32_t kBlockTokensMin = 16;
inline constexpr int32_t kBlockTokensDefault = 64;
inline constexpr int32_t kBlockTokensMax = 1024;

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t block_tokens = kBlockTokensDefault;  // A power of two.
  int32_t head_dim = 0;
  DType dtype = DType::kF32;

  // Strides in elements.
  int64_t value_offset() const { return int64_t{block_tokens} * head_dim; }
  int64_t head_stride() const { return 2 * value_offset(); }
  int64_t layer_stride() const { return head_stride() * num_kv_heads; }
  int64_t block_stride() const { return layer_stride() * num_layers; }
  // Sizes in bytes.
  int64_t layer_bytes() const { return layer_stride() * DTypeBytes(dtype); }
  int64_t block_bytes() const { return block_stride() * DTypeBytes(dtype); }

  // Two workers may exchange KV exactly when these are equal, for instance
  // "kv1 layers=2 heads=1 block=64 dim=128 dtype=f32 order=LH2TD".
  std::string Fingerprint() const;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// ERRORS: InvalidArgument naming the field.
absl::Status ValidateKvLayout(const KvLayout& layout);

// Blocks of one model on one device. The memory lives as long as the pool; its address never
// changes.
class KvPool {
 public:
  // `memory` holds num_blocks blocks, aligned to 64 bytes.
  KvPool(const KvLayout& layout, int32_t num_blocks, std::shared_ptr<std::byte> memory);

  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }
  std::byte* base() const { return memory_.get(); }
  // All bytes of one block. REQUIRES: 0 <= id < num_blocks.
  absl::Span<std::byte> block(BlockId id) const;

 private:
  const KvLayout layout_;
  const int32_t num_blocks_;
  const std::shared_ptr<std::byte> memory_;
};

}  // namespace baton

#endif  // BATON_DEVICE_KV_LAYOUT_H_
