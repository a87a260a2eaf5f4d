// Exit codes of the client commands, so that scripts can tell what happened. Listed in --help.
#ifndef BATON_CLI_EXIT_CODES_H_
#define BATON_CLI_EXIT_CODES_H_

#include "absl/status/status.h"

namespace baton::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;            // Anything not named below.
inline constexpr int kExitUsage = 2;              // Bad flags.
inline constexpr int kExitInvalid = 3;            // The server refused the request as it is.
inline constexpr int kExitNotFound = 4;           // Unknown model; for inspect, no such file.
inline constexpr int kExitUnavailable = 5;        // No server, no healthy worker, or worker lost.
inline constexpr int kExitResourceExhausted = 6;  // Queue or KV pool full: try again later.
inline constexpr int kExitDeadline = 7;           // --timeout passed.
inline constexpr int kExitInterrupted = 130;      // Ctrl-C or SIGTERM.

inline constexpr char kExitCodesHelp[] =
    "Exit codes: 0 done, 1 other failure, 2 bad flags, 3 request refused (invalid), 4 not found, "
    "5 server or worker unavailable, 6 full (try later), 7 time-out, 130 interrupted.";

inline int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return kExitInvalid;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kResourceExhausted:
      return kExitResourceExhausted;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitDeadline;
    default:
      return kExitFailure;
  }
}

}  // namespace baton::cli

#endif  // BATON_CLI_EXIT_CODES_H_
