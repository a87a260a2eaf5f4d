// Serves a registry at http://ADDRESS/metrics (prometheus-cpp's Exposer). Two threads of its own;
// other paths are 404. Thread-safe.
#ifndef BATON_COMMON_METRICS_METRICS_SERVER_H_
#define BATON_COMMON_METRICS_METRICS_SERVER_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/host_port.h"
#include "common/metrics/metrics.h"

namespace prometheus {
class Exposer;
}  // namespace prometheus

namespace baton {

class MetricsServer {
 public:
  // `address` is HOST:PORT; port 0 takes a free one. The page ends to be served when the registry
  // or the server is destroyed, in either order. ERRORS: InvalidArgument: the address;
  // FailedPrecondition: it cannot be listened on, naming it and the system's reason; Internal: the
  // HTTP server cannot start, with what it says.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(absl::string_view address,
                                                              MetricsRegistry& registry);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Where it listens, with the real port.
  const HostPort& address() const { return address_; }

 private:
  MetricsServer(HostPort address, std::unique_ptr<prometheus::Exposer> exposer);

  const HostPort address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace baton

#endif  // BATON_COMMON_METRICS_METRICS_SERVER_H_
