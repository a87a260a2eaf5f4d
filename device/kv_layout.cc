#include "device/kv_layout.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {

std::string KvLayout::Fingerprint() const {
  return absl::StrCat("kv1 layers=", num_layers, " heads=", num_kv_heads, " block=", block_tokens,
                      " dim=", head_dim, " dtype=", absl::AsciiStrToLower(DTypeName(dtype)),
                      " order=LH2TD");
}

absl::Status ValidateKvLayout(const KvLayout& layout) {
  if (layout.num_layers < 1) return absl::InvalidArgumentError("KV layout: num_layers < 1");
  if (layout.num_kv_heads < 1) return absl::InvalidArgumentError("KV layout: num_kv_heads < 1");
  if (layout.head_dim < 1) return absl::InvalidArgumentError("KV layout: head_dim < 1");
  const int32_t tokens = layout.block_tokens;
  if (tokens < kBlockTokensMin || tokens > kBlockTokensMax || (tokens & (tokens - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("KV layout: block_tokens is ", tokens,
                                                   ", not a power of two from ", kBlockTokensMin,
                                                   " to ", kBlockTokensMax));
  }
  return absl::OkStatus();
}

KvPool::KvPool(const KvLayout& layout, int32_t num_blocks, std::shared_ptr<std::byte> memory)
    : layout_(layout), num_blocks_(num_blocks), memory_(std::move(memory)) {
  CHECK(memory_ != nullptr || num_blocks == 0);
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory_.get()) % 64, 0u);
}

absl::Span<std::byte> KvPool::block(BlockId id) const {
  CHECK(id.value >= 0 && id.value < num_blocks_) << "block " << id << " of " << num_blocks_;
  const auto bytes = static_cast<size_t>(layout_.block_bytes());
  return {memory_.get() + static_cast<size_t>(id.value) * bytes, bytes};
}

}  // namespace baton
