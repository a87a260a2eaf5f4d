// Bytes of the TCP wire. All integers are little-endian.
//
//   hello    P -> D, first      magic "BKVH" | version u16 | upgrade u16 | token, 32 bytes
//   welcome  D -> P, answer     magic "BKVW" | version u16 | upgrade u16
//   frame    P -> D, many       magic "BKVF" | version u16 | 0 u16 | sequence number u64 |
//                               length u32 | 0 u32 | XXH3-64 of the payload u64 | payload
//
// upgrade: 1 in a hello asks to go on as another kind of wire (tcp_wire.h), 1 in a welcome agrees.
//
// D answers a hello that is wrong in any way by closing. A frame's header is judged against the
// posted receive before a byte of the payload is read; nothing is ever allocated for a frame. Pure
// functions.
#ifndef BATON_KVTRANSFER_TCP_TCP_FRAME_H_
#define BATON_KVTRANSFER_TCP_TCP_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvtransfer/wire_token.h"

namespace baton::kvtransfer {

inline constexpr uint16_t kTcpWireVersion = 1;
inline constexpr size_t kTcpHelloPrefixBytes = 8;
inline constexpr size_t kTcpHelloBytes = kTcpHelloPrefixBytes + kWireTokenBytes;
inline constexpr size_t kTcpWelcomeBytes = 8;
inline constexpr size_t kTcpFrameHeaderBytes = 32;

using TcpHello = std::array<std::byte, kTcpHelloBytes>;
using TcpWelcome = std::array<std::byte, kTcpWelcomeBytes>;
using TcpFrameHeaderBytes = std::array<std::byte, kTcpFrameHeaderBytes>;

struct TcpFrameHeader {
  uint64_t sequence_number = 0;
  uint32_t length = 0;
  uint64_t checksum = 0;
};

// REQUIRES: token.size() == kWireTokenBytes.
TcpHello EncodeTcpHello(absl::string_view token, bool upgrade = false);
// Judges the first `prefix.size()` bytes of a hello (more than kTcpHelloPrefixBytes are ignored):
// false as soon as they cannot be right.
bool PlausibleTcpHello(absl::Span<const std::byte> prefix);
// REQUIRES: a plausible hello.
absl::string_view TokenOfTcpHello(const TcpHello& hello);
bool TcpHelloAsksForUpgrade(const TcpHello& hello);

TcpWelcome EncodeTcpWelcome(bool upgrade = false);
bool IsTcpWelcome(const TcpWelcome& welcome, bool upgrade = false);

TcpFrameHeaderBytes EncodeTcpFrameHeader(const TcpFrameHeader& header);
// ERRORS: DataLoss: magic, version or a reserved field is wrong.
absl::StatusOr<TcpFrameHeader> DecodeTcpFrameHeader(const TcpFrameHeaderBytes& bytes);

uint64_t TcpPayloadChecksum(absl::Span<const std::byte> payload);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_FRAME_H_
