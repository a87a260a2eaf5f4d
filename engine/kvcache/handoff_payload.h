// What P tells D's engine loop with the last piece of KV (TransferSender::Finish): the token that P
// has sampled, so that D can start at once, and what D checks before it trusts the KV. The format
// is fixed, little-endian, 12 bytes:
//
//   0  u8   version (1)
//   1  u8   flags: bit 0: the logits of the token were finite; the other bits are 0
//   2  u16  0
//   4  u32  tokens whose KV was sent (prompt, and what earlier attempts generated)
//   8  i32  id of the sampled token
#ifndef BATON_ENGINE_KVCACHE_HANDOFF_PAYLOAD_H_
#define BATON_ENGINE_KVCACHE_HANDOFF_PAYLOAD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct HandoffPayload {
  uint32_t num_tokens = 0;
  int32_t first_token_id = 0;
  bool finite = true;
};

std::string EncodeHandoffPayload(const HandoffPayload& payload);

// ERRORS: InvalidArgument: wrong length, version, flags or padding, or a negative token id.
absl::StatusOr<HandoffPayload> DecodeHandoffPayload(absl::string_view bytes);

}  // namespace baton

#endif  // BATON_ENGINE_KVCACHE_HANDOFF_PAYLOAD_H_
