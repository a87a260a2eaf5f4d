// The wire over TCP: D listens on one socket, P connects to it with the one-time token that the
// control link carried. Frames are in tcp_frame.h.
//
// Hostile peers: a hello is a fixed 40 bytes with a deadline, at most kTcpHandshakesMax are read at
// a time (the oldest goes first), and whoever does not know an open token is closed without an
// answer. The token is no encryption: the KV of prompts travels in the clear, so the network
// between workers must be trusted. Thread-safe.
#ifndef BATON_KVTRANSFER_TCP_TCP_WIRE_H_
#define BATON_KVTRANSFER_TCP_TCP_WIRE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "kvtransfer/tcp/tcp_socket.h"
#include "kvtransfer/wire.h"

namespace baton::kvtransfer {

inline constexpr size_t kTcpHandshakesMax = 64;

struct TcpWireOptions {
  // HOST:PORT to listen on, and nothing else; port 0 takes a free one. A host name is resolved
  // once.
  std::string listen_address = "127.0.0.1:0";
  // HOST:PORT that peers are told to connect to; port 0 stands for the port listened on. Empty: the
  // address listened on, which then must not be a wildcard.
  std::string advertise_address = "";
  // From a connection to its complete hello.
  Duration handshake_limit = std::chrono::seconds(2);
};

// Another kind of wire that begins as a TCP connection (nccl/): what becomes of connections past
// the handshake, in place of TCP ends.
class TcpUpgrade {
 public:
  virtual ~TcpUpgrade() = default;
  // D: takes over `socket` and calls `accepted` exactly once, on any thread. `agreed`: the peer has
  // asked for the upgrade and was told yes; without, it sends the frames of a TCP end. Called on
  // the listening thread: must not block.
  virtual void Accept(UniqueFd socket, bool agreed, Wire::Accepted accepted) = 0;
};

class TcpWire : public Wire {
 public:
  // What peers connect to, numeric.
  virtual const std::string& address() const = 0;
};

// ERRORS: InvalidArgument: an address is malformed or a wildcard is advertised; FailedPrecondition:
// the address cannot be listened on (port taken, not this machine's).
// `upgrade`: null, or must outlive the wire's Shutdown.
absl::StatusOr<std::unique_ptr<TcpWire>> MakeTcpWire(const TcpWireOptions& options,
                                                     TcpUpgrade* upgrade = nullptr);

// P's side alone: connects to offers and listens nowhere; Offer is FailedPrecondition.
std::unique_ptr<Wire> MakeTcpConnector();

struct TcpConnection {
  UniqueFd socket;
  bool upgraded = false;  // Asked for and agreed.
};
// P's side of the handshake. ERRORS: of Wire::Connect.
absl::StatusOr<TcpConnection> ConnectTcpWire(const WireOffer& offer, bool ask_for_upgrade,
                                             TimePoint deadline);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_WIRE_H_
