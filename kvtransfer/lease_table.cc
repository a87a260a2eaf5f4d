#include "kvtransfer/lease_table.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::kvtransfer {

LeaseTable::LeaseTable(LeaseLimits limits) : limits_(limits) { CHECK_GT(limits.count, 0u); }

std::optional<TransferId> LeaseTable::Add(TransferId id, TimePoint now) {
  std::optional<TransferId> evicted;
  if (leases_.size() >= limits_.count) {
    auto oldest = std::min_element(
        leases_.begin(), leases_.end(),
        [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    evicted = oldest->first;
    leases_.erase(oldest);
  }
  const TimePoint at_most = SaturatingAdd(now, limits_.total);
  const TimePoint expires = std::min(SaturatingAdd(now, limits_.since_renewal), at_most);
  const bool inserted = leases_.try_emplace(id, Lease{next_order_++, expires, at_most}).second;
  CHECK(inserted) << "transfer " << id << " has a lease already";
  return evicted;
}

bool LeaseTable::Renew(TransferId id, TimePoint now) {
  auto it = leases_.find(id);
  if (it == leases_.end()) return false;
  it->second.expires =
      std::min(SaturatingAdd(now, limits_.since_renewal), it->second.expires_at_most);
  return true;
}

bool LeaseTable::Remove(TransferId id) { return leases_.erase(id) > 0; }

std::vector<TransferId> LeaseTable::Sweep(TimePoint now) {
  std::vector<TransferId> expired;
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.expires <= now) {
      expired.push_back(it->first);
      it = leases_.erase(it);
    } else {
      ++it;
    }
  }
  return expired;
}

}  // namespace baton::kvtransfer
