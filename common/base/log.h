// Structured-enough logging to stderr. spdlog sits behind this header and is included by log.cc
// only. Thread-safe. One line an event: message first, then key=value pairs.
//
//   LogInfo("worker ready", {{"listen", addr}, {"models", 2}});
#ifndef BATON_COMMON_BASE_LOG_H_
#define BATON_COMMON_BASE_LOG_H_

#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Accepts what absl::StrCat does. Values are escaped (control characters, quotes) when printed, so
// text of users or peers cannot forge lines.
struct LogField {
  LogField(absl::string_view k, const absl::AlphaNum& v) : key(k), value(v.Piece()) {}
  std::string key;
  std::string value;
};

// ERRORS: InvalidArgument for a name that is none of debug, info, warning, error, off.
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);
void SetLogLevel(LogLevel level);
LogLevel CurrentLogLevel();

void LogDebug(absl::string_view message, std::initializer_list<LogField> fields = {});
void LogInfo(absl::string_view message, std::initializer_list<LogField> fields = {});
void LogWarning(absl::string_view message, std::initializer_list<LogField> fields = {});
void LogError(absl::string_view message, std::initializer_list<LogField> fields = {});

}  // namespace baton

#endif  // BATON_COMMON_BASE_LOG_H_
