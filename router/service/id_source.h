// Mints request ids and seeds. Thread-safe.
#ifndef BATON_ROUTER_SERVICE_ID_SOURCE_H_
#define BATON_ROUTER_SERVICE_ID_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/strong_id.h"

namespace baton::router {

// From the operating system's cryptographic generator: a client cannot guess another's seed.
// ERRORS: Internal: it gives none.
absl::StatusOr<uint64_t> RandomUint64();

class IdSource {
 public:
  // ERRORS: those of RandomUint64.
  static absl::StatusOr<std::unique_ptr<IdSource>> Create();

  // Random in the high half, so that routers do not collide at a worker; counted in the low half,
  // which starts again after 2^32 requests.
  RequestId NextRequestId() {
    return RequestId(high_ | (next_.fetch_add(1, std::memory_order_relaxed) & 0xFFFFFFFFu));
  }
  // The random half, as workers' logs name this router.
  uint32_t router_number() const { return static_cast<uint32_t>(high_ >> 32); }

 private:
  explicit IdSource(uint64_t random) : high_(random & 0xFFFFFFFF00000000u) {}
  const uint64_t high_;
  std::atomic<uint64_t> next_ = 1;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_ID_SOURCE_H_
