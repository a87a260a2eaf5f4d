// The TCP wire passes the suite of all wires, and withstands peers that are not what they should
// be: raw sockets play them here.
#include "kvtransfer/tcp/tcp_wire.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>
#include <string>

#include "common/base/check.h"
#include "kvtransfer/tcp/tcp_frame.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire_conformance.h"

namespace baton::kvtransfer {

std::unique_ptr<Wire> NewTcpWire() {
  auto wire = MakeTcpWire({});
  CHECK(wire.ok()) << wire.status();
  return *std::move(wire);
}

INSTANTIATE_TEST_SUITE_P(Tcp, WireConformanceTest,
                         ::testing::Values(WireFactory{"tcp", NewTcpWire}), WireFactoryName);

namespace {

TimePoint Soon() { return Clock::Real()->Now() + kBound; }

class TcpWireTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto wire = MakeTcpWire({.handshake_limit = std::chrono::milliseconds(300)});
    ASSERT_TRUE(wire.ok()) << wire.status();
    wire_ = *std::move(wire);
    peer_ = *ParseHostPort(wire_->address(), false);
  }
  void TearDown() override { wire_->Shutdown(); }

  UniqueFd Dial() {
    auto socket = ConnectTcp(peer_, Soon());
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : UniqueFd();
  }
  void Write(const UniqueFd& socket, absl::Span<const std::byte> bytes) {
    (void)WriteAll(socket.get(), bytes, Soon());
  }
  // The wire closes the connection without having said a byte.
  bool ClosedSilently(const UniqueFd& socket) {
    std::byte b;
    return ReadAll(socket.get(), absl::MakeSpan(&b, 1), Soon()).code() ==
           absl::StatusCode::kUnavailable;
  }
  // A peer past the handshake, and the receiving end that was accepted.
  std::pair<UniqueFd, std::unique_ptr<WireEnd>> Handshaken() {
    AcceptLog accepted;
    auto offer = wire_->Offer(kBound, accepted.Callback());
    EXPECT_TRUE(offer.ok());
    UniqueFd socket = Dial();
    Write(socket, EncodeTcpHello(offer->token));
    TcpWelcome welcome;
    EXPECT_TRUE(ReadAll(socket.get(), absl::MakeSpan(welcome), Soon()).ok());
    EXPECT_TRUE(IsTcpWelcome(welcome));
    EXPECT_TRUE(accepted.Await());
    return {std::move(socket), accepted.Take()};
  }
  // What a receive of `sink` ends with when the peer sends `bytes` and leaves.
  absl::Status ReceiveFrom(absl::Span<const std::byte> bytes, std::vector<std::byte>* sink) {
    auto [socket, end] = Handshaken();
    CompletionLog received;
    end->PostReceive(7, absl::MakeSpan(*sink), received.Next());
    Write(socket, bytes);
    shutdown(socket.get(), SHUT_WR);
    EXPECT_TRUE(received.Await(1));
    return received.size() > 0 ? received.statuses()[0] : absl::UnknownError("");
  }

  std::unique_ptr<TcpWire> wire_;
  HostPort peer_;
};

std::vector<std::byte> Frame(TcpFrameHeader header, const std::vector<std::byte>& payload) {
  const TcpFrameHeaderBytes bytes = EncodeTcpFrameHeader(header);
  std::vector<std::byte> frame(bytes.size() + payload.size());
  std::copy(bytes.begin(), bytes.end(), frame.begin());
  std::copy(payload.begin(), payload.end(), frame.begin() + bytes.size());
  return frame;
}

TEST_F(TcpWireTest, ReceivesAFrameThatArrivesByteByByte) {
  const std::vector<std::byte> payload = PatternBytes(100, 3);
  const auto frame = Frame({7, 100, TcpPayloadChecksum(payload)}, payload);
  auto [socket, end] = Handshaken();
  CompletionLog received;
  std::vector<std::byte> sink(100);
  end->PostReceive(7, absl::MakeSpan(sink), received.Next());
  for (std::byte b : frame) Write(socket, {&b, 1});
  ASSERT_TRUE(received.Await(1));
  EXPECT_TRUE(received.statuses()[0].ok()) << received.statuses()[0];
  EXPECT_EQ(sink, payload);
}

TEST_F(TcpWireTest, ReportsAFlippedBitInThePayloadAsDataLoss) {
  const std::vector<std::byte> payload = PatternBytes(100, 3);
  auto frame = Frame({7, 100, TcpPayloadChecksum(payload)}, payload);
  frame.back() ^= std::byte{1};
  std::vector<std::byte> sink(100);
  EXPECT_EQ(ReceiveFrom(frame, &sink).code(), absl::StatusCode::kDataLoss);
}

TEST_F(TcpWireTest, ChecksTheHeaderBeforeAnyPayloadByteIsStored) {
  const std::vector<std::byte> payload = PatternBytes(100, 3);
  const uint64_t checksum = TcpPayloadChecksum(payload);
  const std::vector<std::byte> good = Frame({7, 100, checksum}, payload);
  std::vector<std::vector<std::byte>> frames = {
      Frame({8, 100, checksum}, payload),         // Sequence number.
      Frame({7, 99, checksum}, payload),          // Length.
      Frame({7, 0xFFFFFFFF, checksum}, payload),  // The largest length there is.
  };
  for (size_t i : {0, 3, 4, 6, 20, 23}) {  // Magic, version, both reserved fields.
    frames.push_back(good);
    frames.back()[i] ^= std::byte{0x40};
  }
  for (const auto& frame : frames) {
    std::vector<std::byte> sink(100, std::byte{0xEE});
    EXPECT_EQ(ReceiveFrom(frame, &sink).code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(sink, std::vector<std::byte>(100, std::byte{0xEE}));
  }
}

TEST_F(TcpWireTest, ReportsATruncatedFrameAsUnavailable) {
  const std::vector<std::byte> payload = PatternBytes(100, 3);
  const auto frame = Frame({7, 100, TcpPayloadChecksum(payload)}, payload);
  for (size_t size : {size_t{0}, size_t{1}, size_t{31}, size_t{32}, size_t{33}, frame.size() - 1}) {
    std::vector<std::byte> sink(100);
    EXPECT_EQ(ReceiveFrom(absl::MakeConstSpan(frame).subspan(0, size), &sink).code(),
              absl::StatusCode::kUnavailable)
        << size;
  }
}

TEST_F(TcpWireTest, BreaksTheSendingEndWhenTheReceiverSpeaks) {
  // A false D: it welcomes, and then sends what D never sends.
  auto listener = ListenTcp({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  std::thread server([&] {
    ASSERT_TRUE(AwaitEvents(listener->fd.get(), POLLIN, Soon()).ok());
    UniqueFd socket(accept4(listener->fd.get(), nullptr, nullptr, SOCK_NONBLOCK));
    TcpHello hello;
    ASSERT_TRUE(ReadAll(socket.get(), absl::MakeSpan(hello), Soon()).ok());
    ASSERT_TRUE(WriteAll(socket.get(), EncodeTcpWelcome(), Soon()).ok());
    ASSERT_TRUE(WriteAll(socket.get(), hello, Soon()).ok());
    ASSERT_TRUE(AwaitEvents(socket.get(), POLLRDHUP, Soon()).ok());
  });
  auto end = wire_->Connect({listener->address.ToString(), std::string(32, 't')}, kBound);
  ASSERT_TRUE(end.ok()) << end.status();
  CompletionLog sent;
  const std::vector<std::byte> source(16 << 20);
  (*end)->PostSend(0, source, sent.Next());
  ASSERT_TRUE(sent.Await(1));
  EXPECT_EQ(sent.statuses()[0].code(), absl::StatusCode::kUnavailable);
  end->reset();
  server.join();
}

TEST_F(TcpWireTest, RefusesAPeerThatDoesNotWelcomeInTime) {
  auto listener = ListenTcp({"127.0.0.1", 0});  // Accepts in the kernel, never answers.
  ASSERT_TRUE(listener.ok());
  const auto end = wire_->Connect({listener->address.ToString(), std::string(32, 't')},
                                  std::chrono::milliseconds(100));
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDeadlineExceeded) << end.status();
}

TEST_F(TcpWireTest, ReportsAClosedPortAsUnavailable) {
  HostPort closed;
  {
    auto listener = ListenTcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener.ok());
    closed = listener->address;
  }
  const auto end = wire_->Connect({closed.ToString(), std::string(32, 't')}, kBound);
  EXPECT_EQ(end.status().code(), absl::StatusCode::kUnavailable) << end.status();
}

TEST_F(TcpWireTest, ClosesAConnectionThatShowsNoTokenInTime) {
  UniqueFd silent = Dial();
  UniqueFd slow = Dial();
  Write(slow, absl::MakeConstSpan(EncodeTcpHello(std::string(32, 't'))).subspan(0, 20));
  EXPECT_TRUE(ClosedSilently(silent));
  EXPECT_TRUE(ClosedSilently(slow));
}

TEST_F(TcpWireTest, RefusesAReplayedHello) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  auto end = wire_->Connect(*offer, kBound);
  ASSERT_TRUE(end.ok()) << end.status();
  ASSERT_TRUE(accepted.Await());
  UniqueFd replay = Dial();
  Write(replay, EncodeTcpHello(offer->token));
  EXPECT_TRUE(ClosedSilently(replay));
  EXPECT_EQ(accepted.calls(), 1);
}

TEST_F(TcpWireTest, AcceptsTheTokenWhileManyIdleConnectionsAreOpen) {
  std::vector<UniqueFd> idle;
  for (size_t i = 0; i < 2 * kTcpHandshakesMax; ++i) idle.push_back(Dial());
  auto [socket, end] = Handshaken();
  EXPECT_NE(end, nullptr);
}

TEST_F(TcpWireTest, BindsToTheConfiguredAddressOnly) {
  EXPECT_EQ(peer_.host, "127.0.0.1");
  // 127.0.0.2 is this machine too, but not what was configured.
  EXPECT_EQ(ConnectTcp({"127.0.0.2", peer_.port}, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(TcpWireTest, NamesATakenPort) {
  auto second = MakeTcpWire({.listen_address = wire_->address()});
  ASSERT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  EXPECT_NE(second.status().message().find(wire_->address()), absl::string_view::npos);
}

TEST_F(TcpWireTest, ListensOnAWildcardOnlyWithAnAddressToAdvertise) {
  EXPECT_EQ(MakeTcpWire({.listen_address = "0.0.0.0:0"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto wire = MakeTcpWire({.listen_address = "0.0.0.0:0", .advertise_address = "127.0.0.1:0"});
  ASSERT_TRUE(wire.ok()) << wire.status();
  AcceptLog accepted;
  auto offer = (*wire)->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->address.substr(0, 10), "127.0.0.1:");
  EXPECT_TRUE((*wire)->Connect(*offer, kBound).ok());
  EXPECT_TRUE(accepted.Await());
}

TEST_F(TcpWireTest, RefusesMalformedAddresses) {
  for (const char* address : {"", "host", "127.0.0.1:70000", "127.0.0.1:-1", "not a host:1"}) {
    EXPECT_FALSE(MakeTcpWire({.listen_address = address}).ok()) << address;
  }
}

TEST_F(TcpWireTest, WorksOverIpv6) {
  auto wire = MakeTcpWire({.listen_address = "[::1]:0"});
  if (!wire.ok()) GTEST_SKIP() << "no IPv6 here: " << wire.status();
  AcceptLog accepted;
  auto offer = (*wire)->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  EXPECT_TRUE((*wire)->Connect(*offer, kBound).ok());
  EXPECT_TRUE(accepted.Await());
}

// Random, truncated, mutated and replayed bytes at the listener, without credentials.
std::vector<std::byte> HostileBytes(std::mt19937_64* rng, const std::string& used_token) {
  std::vector<std::byte> bytes;
  const uint64_t kind = (*rng)() % 5;
  if (kind == 0) {
    bytes = PatternBytes((*rng)() % 200, (*rng)());
  } else if (kind == 1) {
    const TcpHello hello = EncodeTcpHello(used_token);
    bytes.assign(hello.begin(), hello.begin() + static_cast<long>((*rng)() % hello.size()));
  } else if (kind == 2) {
    const TcpHello hello = EncodeTcpHello(used_token);
    bytes.assign(hello.begin(), hello.end());
    bytes[(*rng)() % bytes.size()] ^= static_cast<std::byte>(1 + (*rng)() % 255);
  } else if (kind == 3) {
    const TcpHello hello = EncodeTcpHello(used_token);
    bytes.assign(hello.begin(), hello.end());
  } else {
    bytes = Frame({0, 0xFFFFFFFF, 0}, PatternBytes(64, (*rng)()));
  }
  return bytes;
}

TEST_F(TcpWireTest, RefusesTenThousandHostileHandshakesWhileATransferGoesOn) {
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  auto sender = wire_->Connect(*offer, kBound);
  ASSERT_TRUE(sender.ok());
  ASSERT_TRUE(accepted.Await());
  std::unique_ptr<WireEnd> receiver = accepted.Take();
  AcceptLog untouched;
  auto other = wire_->Offer(kBound * 10, untouched.Callback());
  ASSERT_TRUE(other.ok());

  rusage before;
  getrusage(RUSAGE_SELF, &before);
  std::mt19937_64 rng(20260101);
  const std::vector<std::byte> source = PatternBytes(50000, 1);
  std::vector<std::byte> sink(source.size());
  for (int i = 0; i < 10000; ++i) {
    UniqueFd socket = Dial();
    ASSERT_TRUE(socket.valid());
    Write(socket, HostileBytes(&rng, offer->token));
    if (i % 100 != 0) continue;
    CompletionLog sent, received;
    const uint64_t sequence_number = static_cast<uint64_t>(i);
    receiver->PostReceive(sequence_number, absl::MakeSpan(sink), received.Next());
    (*sender)->PostSend(sequence_number, source, sent.Next());
    ASSERT_TRUE(received.Await(1) && sent.Await(1));
    ASSERT_TRUE(received.statuses()[0].ok()) << received.statuses()[0];
    ASSERT_EQ(sink, source);
  }
  rusage after;
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024) << "kilobytes";
  EXPECT_EQ(untouched.calls(), 0) << "a hostile peer took an offer";
  EXPECT_EQ(accepted.calls(), 1);
}

// A prefill worker only sends: it must not open a port for that.
TEST_F(TcpWireTest, AConnectorReachesAnOfferAndMakesNoneItself) {
  const std::unique_ptr<Wire> connector = MakeTcpConnector();
  AcceptLog accepted;
  auto offer = wire_->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  auto end = connector->Connect(*offer, kBound);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(accepted.Await());
  EXPECT_EQ(connector->Offer(kBound, accepted.Callback()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton::kvtransfer
