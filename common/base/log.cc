#include "common/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/escaping.h"

namespace baton {
namespace {

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger(  // NOLINT(banned-new): process-lifetime singleton
        "baton", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

bool NeedsQuotes(absl::string_view value) {
  if (value.empty()) return true;
  for (const unsigned char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c >= 0x7f) return true;
  }
  return false;
}

void Log(spdlog::level::level_enum level, absl::string_view message,
         std::initializer_list<LogField> fields) {
  spdlog::logger& logger = Logger();
  if (!logger.should_log(level)) return;
  std::string line(message);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=");
    if (NeedsQuotes(field.value)) {
      absl::StrAppend(&line, "\"", absl::Utf8SafeCEscape(field.value), "\"");
    } else {
      absl::StrAppend(&line, field.value);
    }
  }
  logger.log(level, "{}", line);
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return absl::InvalidArgumentError(
      absl::StrCat("log level must be debug, info, warning, error or off, not '",
                   absl::Utf8SafeCEscape(name), "'"));
}

void SetLogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return Logger().set_level(spdlog::level::debug);
    case LogLevel::kInfo:
      return Logger().set_level(spdlog::level::info);
    case LogLevel::kWarning:
      return Logger().set_level(spdlog::level::warn);
    case LogLevel::kError:
      return Logger().set_level(spdlog::level::err);
    case LogLevel::kOff:
      return Logger().set_level(spdlog::level::off);
  }
}

LogLevel CurrentLogLevel() {
  switch (Logger().level()) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return LogLevel::kDebug;
    case spdlog::level::info:
      return LogLevel::kInfo;
    case spdlog::level::warn:
      return LogLevel::kWarning;
    case spdlog::level::off:
      return LogLevel::kOff;
    default:
      return LogLevel::kError;
  }
}

void LogDebug(absl::string_view message, std::initializer_list<LogField> fields) {
  Log(spdlog::level::debug, message, fields);
}
void LogInfo(absl::string_view message, std::initializer_list<LogField> fields) {
  Log(spdlog::level::info, message, fields);
}
void LogWarning(absl::string_view message, std::initializer_list<LogField> fields) {
  Log(spdlog::level::warn, message, fields);
}
void LogError(absl::string_view message, std::initializer_list<LogField> fields) {
  Log(spdlog::level::err, message, fields);
}

}  // namespace baton
