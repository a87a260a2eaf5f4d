// Addresses as users and peers write them: HOST:PORT, or [V6]:PORT. Thread-safe (no state).
#ifndef BATON_COMMON_BASE_HOST_PORT_H_
#define BATON_COMMON_BASE_HOST_PORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct HostPort {
  std::string host;  // Without brackets: "127.0.0.1", "::1", "localhost".
  uint16_t port = 0;

  // "127.0.0.1:80", "[::1]:80".
  std::string ToString() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Port 0 is accepted only with `allow_port_zero` (to listen on a free port). The host must be
// given: listening everywhere is written 0.0.0.0 or [::], so that it is never an accident. ERRORS:
// InvalidArgument naming the text and what is wrong with it.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, bool allow_port_zero);

// A numeric address for listening on `address`: the first that a host name stands for.
// Blocks on name resolution: for start-up only. ERRORS: InvalidArgument: the name is not known.
absl::StatusOr<HostPort> ResolveForListening(const HostPort& address);

// True when only this machine can reach a numeric address (127.0.0.0/8 or ::1).
bool IsLoopback(const HostPort& address);

// Why listening on a numeric address fails, by trying: libraries tell us no more than that it did.
// ERRORS: FailedPrecondition naming the address and the system's reason (port taken, no permission,
// not an address of this machine). OK when it would succeed now.
absl::Status TryListen(const HostPort& address);

}  // namespace baton

#endif  // BATON_COMMON_BASE_HOST_PORT_H_
