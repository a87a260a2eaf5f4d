#include "common/metrics/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/metrics/canonical.h"

namespace baton {
namespace {

constexpr absl::string_view kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "gcc " __VERSION__;
#endif

double CpuSeconds() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// /proc/self/statm: pages of virtual and of resident memory come first.
void ReadMemory(double* virtual_bytes, double* resident_bytes) {
  std::ifstream statm("/proc/self/statm");
  double virtual_pages = 0;
  double resident_pages = 0;
  statm >> virtual_pages >> resident_pages;
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  *virtual_bytes = virtual_pages * page_bytes;
  *resident_bytes = resident_pages * page_bytes;
}

double CountThreads() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(":\t "), absl::SkipEmpty());
    double threads = 0;
    if (parts.size() == 2 && parts[0] == "Threads" && absl::SimpleAtod(parts[1], &threads)) {
      return threads;
    }
  }
  return 0;
}

double CountOpenFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return -1;
  double count = 0;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(dir);
  return count - 1;  // Without the one opened for looking.
}

double MaxFds() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? INFINITY : static_cast<double>(limit.rlim_cur);
}

}  // namespace

ScrapeCallback AddProcessMetrics(MetricsRegistry& registry, absl::string_view version) {
  registry.AddGauge(metrics::kBuildInfo).With({version, kCompiler})->Set(1);
  auto cpu = registry.AddCounter(metrics::kProcessCpuSeconds).With({});
  auto resident = registry.AddGauge(metrics::kProcessResidentBytes).With({});
  auto virtual_memory = registry.AddGauge(metrics::kProcessVirtualBytes).With({});
  auto open_fds = registry.AddGauge(metrics::kProcessOpenFds).With({});
  auto max_fds = registry.AddGauge(metrics::kProcessMaxFds).With({});
  auto threads = registry.AddGauge(metrics::kProcessThreads).With({});
  return registry.AddScrapeCallback([=] {
    double virtual_bytes = 0;
    double resident_bytes = 0;
    ReadMemory(&virtual_bytes, &resident_bytes);
    cpu->RaiseTo(CpuSeconds());
    resident->Set(resident_bytes);
    virtual_memory->Set(virtual_bytes);
    open_fds->Set(CountOpenFds());
    max_fds->Set(MaxFds());
    threads->Set(CountThreads());
  });
}

}  // namespace baton
