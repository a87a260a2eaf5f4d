// The one-time secret with which the peer of a pair shows that it was told of the offer over the
// control link. Pure functions, thread-safe.
#ifndef BATON_KVTRANSFER_WIRE_TOKEN_H_
#define BATON_KVTRANSFER_WIRE_TOKEN_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::kvtransfer {

inline constexpr size_t kWireTokenBytes = 32;

// kWireTokenBytes bytes from the system's random generator (binary, not text). ERRORS: Internal:
// the generator failed.
absl::StatusOr<std::string> MintWireToken();

// Compares in a time that depends on the sizes only.
bool WireTokensEqual(absl::string_view a, absl::string_view b);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_TOKEN_H_
