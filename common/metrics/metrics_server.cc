#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

// The HTTP server's own limits. A slow or silent scraper holds a thread no longer than the
// time-out.
std::vector<std::string> HttpOptions(const HostPort& address) {
  return {"listening_ports",    address.ToString(),
          "num_threads",        "2",
          "enable_keep_alive",  "no",
          "request_timeout_ms", "5000"};
}

void ConnectOnce(const HostPort& address) {
  sockaddr_storage to{};
  socklen_t size = 0;
  if (absl::StrContains(address.host, ':')) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&to);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr);  // :: connects to this machine.
    size = sizeof(*v6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&to);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr);  // So does 0.0.0.0.
    size = sizeof(*v4);
  }
  const int fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const int ignored = connect(fd, reinterpret_cast<const sockaddr*>(&to), size);
  static_cast<void>(ignored);  // The attempt alone wakes the server.
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(absl::string_view address,
                                                                    MetricsRegistry& registry) {
  ASSIGN_OR_RETURN(const HostPort named, ParseHostPort(address, /*allow_port_zero=*/true));
  ASSIGN_OR_RETURN(HostPort resolved, ResolveForListening(named));
  // Asked first: prometheus-cpp says of a taken port only that there was a problem.
  RETURN_IF_ERROR(TryListen(resolved));
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(HttpOptions(resolved));
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.size() != 1) {
      return absl::InternalError(absl::StrCat("metrics server on ", resolved.ToString(), ": ",
                                              ports.size(), " listening ports instead of one"));
    }
    resolved.port = static_cast<uint16_t>(ports[0]);
    exposer->RegisterCollectable(registry.collectable());
    return std::unique_ptr<MetricsServer>(
        new MetricsServer(  // NOLINT(banned-new): private constructor
            std::move(resolved), std::move(exposer)));
  } catch (const std::exception& e) {
    RETURN_IF_ERROR(TryListen(resolved));  // Somebody may have been quicker.
    return absl::InternalError(
        absl::StrCat("metrics server on ", resolved.ToString(), " cannot start: ", e.what()));
  }
}

MetricsServer::MetricsServer(HostPort address, std::unique_ptr<prometheus::Exposer> exposer)
    : address_(std::move(address)), exposer_(std::move(exposer)) {}

MetricsServer::~MetricsServer() {
  // The HTTP server looks whether it is to stop when somebody connects, or else every two seconds;
  // a process that ends should not wait for that.
  Mutex mutex;
  CondVar stopped_changed;
  bool stopped = false;
  std::thread waker([&] {
    MutexLock lock(mutex);
    while (!stopped) {
      ConnectOnce(address_);
      stopped_changed.WaitFor(mutex, std::chrono::milliseconds(10));
    }
  });
  exposer_.reset();
  {
    MutexLock lock(mutex);
    stopped = true;
  }
  stopped_changed.SignalAll();
  waker.join();
}

}  // namespace baton
