// The details that go with some errors (google.rpc.RetryInfo, google.rpc.BadRequest), carried as
// payloads of absl::Status inside a process and in the `grpc-status-details-bin` trailer between
// processes (status_conversion.h). Functions are thread-safe; nothing of gRPC is used here.
#ifndef BATON_COMMON_RPC_ERROR_DETAILS_H_
#define BATON_COMMON_RPC_ERROR_DETAILS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"

namespace baton::rpc {

// Type URLs under which details are kept in a status.
inline constexpr absl::string_view kRetryInfoUrl = "type.googleapis.com/google.rpc.RetryInfo";
inline constexpr absl::string_view kBadRequestUrl = "type.googleapis.com/google.rpc.BadRequest";

// RESOURCE_EXHAUSTED with the delay after which the client may try again.
absl::Status ResourceExhaustedError(absl::string_view message, Duration retry_delay);

// INVALID_ARGUMENT "field: description" that names the field in BadRequest too. `description` must
// not hold bytes that came with the request, unless they went through QuoteForError.
absl::Status InvalidFieldError(absl::string_view field, absl::string_view description);

// Text of a user or peer, safe inside an error: in quotes, everything but printable ASCII escaped,
// at most `bytes_max` bytes of the original followed by "...".
std::string QuoteForError(absl::string_view text, size_t bytes_max = 64);

// The delay of RetryInfo, if the status carries one that can be read.
std::optional<Duration> RetryDelay(const absl::Status& status);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_ERROR_DETAILS_H_
