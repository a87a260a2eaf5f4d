// What every daemon command shares: its flags, waiting for SIGTERM, and errors at start.
#ifndef BATON_CLI_DAEMON_H_
#define BATON_CLI_DAEMON_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/metrics/metrics_server.h"
#include "common/rpc/signal_watcher.h"

namespace CLI {
class App;
}  // namespace CLI

namespace baton::cli {

struct DaemonFlags {
  std::string listen;
  std::string metrics;
  double grace_seconds = 30;
  std::string log_level = "info";
};

void AddDaemonFlags(CLI::App& command, DaemonFlags& flags, const char* default_listen,
                    const char* default_metrics);

inline Duration Grace(const DaemonFlags& flags) {
  return std::chrono::nanoseconds(static_cast<int64_t>(flags.grace_seconds * 1e9));
}

// Waits for SIGTERM or SIGINT, or for a failure. Construct before anything makes threads.
class StopSignal {
 public:
  StopSignal();
  // OK after a signal; otherwise what Fail was given. ERRORS: whatever the failure was.
  absl::Status Wait() EXCLUDES(mutex_);
  // Ends the wait: the process cannot go on. The first failure counts. Thread-safe.
  void Fail(const absl::Status& status) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  absl::Status failure_ GUARDED_BY(mutex_);
  rpc::SignalWatcher watcher_;
};

// The registry of a process with its own metrics, served at flags.metrics.
class ProcessMetricsPage {
 public:
  // ERRORS: InvalidArgument, FailedPrecondition: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ProcessMetricsPage>> Start(const std::string& address);
  MetricsRegistry& registry() { return registry_; }
  std::string address() const;

 private:
  ProcessMetricsPage();

  MetricsRegistry registry_;
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

// Sets the log level. ERRORS: InvalidArgument.
absl::Status ApplyLogLevel(const DaemonFlags& flags);

// Prints "baton: <command>: message" to stderr and returns the exit code.
int StartFailed(absl::string_view command, const absl::Status& status);

}  // namespace baton::cli

#endif  // BATON_CLI_DAEMON_H_
