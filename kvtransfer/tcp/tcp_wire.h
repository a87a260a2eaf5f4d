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

class TcpWire : public Wire {
 public:
  // What peers connect to, numeric.
  virtual const std::string& address() const = 0;
};

// ERRORS: InvalidArgument: an address is malformed or a wildcard is advertised; FailedPrecondition:
// the address cannot be listened on (port taken, not this machine's).
absl::StatusOr<std::unique_ptr<TcpWire>> MakeTcpWire(const TcpWireOptions& options);

// P's side alone: connects to offers and listens nowhere; Offer is FailedPrecondition.
std::unique_ptr<Wire> MakeTcpConnector();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TCP_TCP_WIRE_H_
