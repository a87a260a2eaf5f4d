// P's leases: KV that was delivered and is kept until D confirms progress. A lease ends by release,
// by time since its last renewal, by its age, or because too many are held (the oldest goes).
// Thread rule: owned by the sender's core thread.
#ifndef BATON_KVTRANSFER_LEASE_TABLE_H_
#define BATON_KVTRANSFER_LEASE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/strong_id.h"

namespace baton::kvtransfer {

struct LeaseLimits {
  Duration since_renewal;
  Duration total;
  size_t count = 0;
};

class LeaseTable {
 public:
  explicit LeaseTable(LeaseLimits limits);

  // Returns the lease that had to go for it, if any. REQUIRES: `id` has no lease.
  std::optional<TransferId> Add(TransferId id, TimePoint now);
  // False when `id` has no lease. Never extends past the total limit.
  bool Renew(TransferId id, TimePoint now);
  bool Remove(TransferId id);
  // Visits every lease; removes and returns all that have expired.
  std::vector<TransferId> Sweep(TimePoint now);
  size_t size() const { return leases_.size(); }

 private:
  struct Lease {
    uint64_t order;  // Of insertion.
    TimePoint expires;
    TimePoint expires_at_most;
  };

  const LeaseLimits limits_;
  uint64_t next_order_ = 0;
  std::unordered_map<TransferId, Lease> leases_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LEASE_TABLE_H_
