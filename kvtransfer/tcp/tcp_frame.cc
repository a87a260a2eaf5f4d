#include "kvtransfer/tcp/tcp_frame.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kvtransfer/little_endian.h"

namespace baton::kvtransfer {
namespace {

constexpr absl::string_view kHelloMagic = "BKVH";
constexpr absl::string_view kWelcomeMagic = "BKVW";
constexpr absl::string_view kFrameMagic = "BKVF";

void StorePrefix(absl::string_view magic, bool upgrade, std::byte* to) {
  std::memcpy(to, magic.data(), 4);
  StoreLittleEndian<uint16_t>(kTcpWireVersion, to + 4);
  StoreLittleEndian<uint16_t>(upgrade ? 1 : 0, to + 6);
}

}  // namespace

TcpHello EncodeTcpHello(absl::string_view token, bool upgrade) {
  CHECK_EQ(token.size(), kWireTokenBytes);
  TcpHello hello;
  StorePrefix(kHelloMagic, upgrade, hello.data());
  std::memcpy(hello.data() + kTcpHelloPrefixBytes, token.data(), kWireTokenBytes);
  return hello;
}

bool PlausibleTcpHello(absl::Span<const std::byte> prefix) {
  const auto fits = [&](bool upgrade) {
    std::array<std::byte, kTcpHelloPrefixBytes> expected;
    StorePrefix(kHelloMagic, upgrade, expected.data());
    const size_t size = std::min(prefix.size(), expected.size());
    return std::equal(prefix.begin(), prefix.begin() + size, expected.begin());
  };
  return fits(false) || fits(true);
}

absl::string_view TokenOfTcpHello(const TcpHello& hello) {
  return absl::string_view(reinterpret_cast<const char*>(hello.data()) + kTcpHelloPrefixBytes,
                           kWireTokenBytes);
}

bool TcpHelloAsksForUpgrade(const TcpHello& hello) {
  return LoadLittleEndian<uint16_t>(hello.data() + 6) == 1;
}

TcpWelcome EncodeTcpWelcome(bool upgrade) {
  TcpWelcome welcome;
  StorePrefix(kWelcomeMagic, upgrade, welcome.data());
  return welcome;
}

bool IsTcpWelcome(const TcpWelcome& welcome, bool upgrade) {
  return welcome == EncodeTcpWelcome(upgrade);
}

TcpFrameHeaderBytes EncodeTcpFrameHeader(const TcpFrameHeader& header) {
  TcpFrameHeaderBytes bytes;
  StorePrefix(kFrameMagic, false, bytes.data());
  StoreLittleEndian<uint64_t>(header.sequence_number, bytes.data() + 8);
  StoreLittleEndian<uint32_t>(header.length, bytes.data() + 16);
  StoreLittleEndian<uint32_t>(0, bytes.data() + 20);
  StoreLittleEndian<uint64_t>(header.checksum, bytes.data() + 24);
  return bytes;
}

absl::StatusOr<TcpFrameHeader> DecodeTcpFrameHeader(const TcpFrameHeaderBytes& bytes) {
  std::array<std::byte, 8> prefix;
  StorePrefix(kFrameMagic, false, prefix.data());
  if (!std::equal(prefix.begin(), prefix.end(), bytes.begin()) ||
      LoadLittleEndian<uint32_t>(bytes.data() + 20) != 0) {
    return absl::DataLossError("tcp wire: not a frame of version 1 (magic, version, reserved)");
  }
  return TcpFrameHeader{.sequence_number = LoadLittleEndian<uint64_t>(bytes.data() + 8),
                        .length = LoadLittleEndian<uint32_t>(bytes.data() + 16),
                        .checksum = LoadLittleEndian<uint64_t>(bytes.data() + 24)};
}

uint64_t TcpPayloadChecksum(absl::Span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

}  // namespace baton::kvtransfer
