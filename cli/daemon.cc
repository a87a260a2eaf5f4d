#include "cli/daemon.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "cli/exit_codes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/metrics/process_metrics.h"

namespace baton::cli {

void AddDaemonFlags(CLI::App& command, DaemonFlags& flags, const char* default_listen,
                    const char* default_metrics) {
  flags.listen = default_listen;
  flags.metrics = default_metrics;
  command.add_option("--listen", flags.listen,
                     "Address for gRPC, HOST:PORT; port 0 takes a free one");
  command.add_option("--metrics", flags.metrics, "Address for Prometheus, HOST:PORT (/metrics)");
  command
      .add_option("--grace", flags.grace_seconds, "Seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0));
  command.add_option("--log-level", flags.log_level, "debug, info, warning, error or off");
}

StopSignal::StopSignal()
    : watcher_([this](int signal) {
        LogInfo("stopping", {{"signal", signal}});
        {
          MutexLock lock(mutex_);
          stopped_ = true;
        }
        changed_.SignalAll();
      }) {}

absl::Status StopSignal::Wait() {
  MutexLock lock(mutex_);
  while (!stopped_) changed_.WaitFor(mutex_, std::chrono::seconds(3600));
  return failure_;
}

void StopSignal::Fail(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    failure_ = status;
  }
  changed_.SignalAll();
}

struct ProcessMetricsPage::Parts {
  ScrapeCallback process_metrics;
  std::unique_ptr<MetricsServer> server;
};

ProcessMetricsPage::ProcessMetricsPage() : parts_(std::make_shared<Parts>()) {}

absl::StatusOr<std::unique_ptr<ProcessMetricsPage>> ProcessMetricsPage::Start(
    const std::string& address) {
  auto page = std::unique_ptr<ProcessMetricsPage>(
      new ProcessMetricsPage);  // NOLINT(banned-new): private constructor
  page->parts_->process_metrics = AddProcessMetrics(page->registry_, BATON_VERSION);
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::Start(address, page->registry_);
  if (!server.ok()) return Annotate(server.status(), "--metrics");
  page->parts_->server = *std::move(server);
  return page;
}

std::string ProcessMetricsPage::address() const { return parts_->server->address().ToString(); }

absl::Status ApplyLogLevel(const DaemonFlags& flags) {
  absl::StatusOr<LogLevel> level = ParseLogLevel(flags.log_level);
  if (!level.ok()) return level.status();
  SetLogLevel(*level);
  return absl::OkStatus();
}

int StartFailed(absl::string_view command, const absl::Status& status) {
  std::fprintf(stderr, "baton: %s: %s\n", std::string(command).c_str(), status.ToString().c_str());
  return ExitCode(status);
}

}  // namespace baton::cli
