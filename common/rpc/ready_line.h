// The line by which a daemon says that it serves, with the ports it really has: one line on stdout,
// where a daemon writes nothing else (logs go to stderr), for people and scripts alike.
//
//   ready role=router listen=127.0.0.1:41234 metrics=127.0.0.1:39001
#ifndef BATON_COMMON_RPC_READY_LINE_H_
#define BATON_COMMON_RPC_READY_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::rpc {

using ReadyFields = std::vector<std::pair<std::string, std::string>>;

// REQUIRES: no spaces, quotes or control characters in role, names and values.
std::string FormatReadyLine(absl::string_view role, const ReadyFields& fields);

// Writes the line to stdout and flushes.
void PrintReadyLine(absl::string_view role, const ReadyFields& fields);

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_READY_LINE_H_
