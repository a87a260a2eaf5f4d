#include "engine/kvcache/handoff_payload.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr size_t kPayloadBytes = 12;
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFiniteFlag = 1;

void AppendU32(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

uint8_t ByteAt(absl::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

uint32_t ReadU32(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(ByteAt(bytes, at + i)) << (8 * i);
  return value;
}

}  // namespace

std::string EncodeHandoffPayload(const HandoffPayload& payload) {
  std::string out;
  out.reserve(kPayloadBytes);
  out.push_back(static_cast<char>(kVersion));
  out.push_back(static_cast<char>(payload.finite ? kFiniteFlag : 0));
  out.append(2, '\0');
  AppendU32(payload.num_tokens, out);
  AppendU32(static_cast<uint32_t>(payload.first_token_id), out);
  return out;
}

absl::StatusOr<HandoffPayload> DecodeHandoffPayload(absl::string_view bytes) {
  if (bytes.size() != kPayloadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("hand-over payload: ", bytes.size(), " bytes, not ", kPayloadBytes));
  }
  if (ByteAt(bytes, 0) != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hand-over payload: version ", static_cast<int>(ByteAt(bytes, 0)), ", not ", kVersion));
  }
  const uint8_t flags = ByteAt(bytes, 1);
  if ((flags & ~kFiniteFlag) != 0 || ByteAt(bytes, 2) != 0 || ByteAt(bytes, 3) != 0) {
    return absl::InvalidArgumentError("hand-over payload: unknown flags");
  }
  HandoffPayload payload;
  payload.finite = (flags & kFiniteFlag) != 0;
  payload.num_tokens = ReadU32(bytes, 4);
  payload.first_token_id = static_cast<int32_t>(ReadU32(bytes, 8));
  if (payload.first_token_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hand-over payload: token id ", payload.first_token_id));
  }
  return payload;
}

}  // namespace baton
