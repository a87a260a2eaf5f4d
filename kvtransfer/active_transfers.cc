#include "kvtransfer/active_transfers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::kvtransfer {

absl::Status ActiveTransfers::Add(TransferId id) {
  MutexLock lock(mutex_);
  if (shut_down_) return absl::UnavailableError("the KV transfer is shut down");
  if (transfers_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("transfer ", id.value, " is in use"));
  }
  if (transfers_.size() >= count_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("transfers_max (", count_max_, ") transfers are in use"));
  }
  transfers_.try_emplace(id);
  PublishLevel();
  return absl::OkStatus();
}

void ActiveTransfers::Remove(TransferId id) {
  MutexLock lock(mutex_);
  transfers_.erase(id);
  PublishLevel();
}

void ActiveTransfers::PublishLevel() {
  if (level_ != nullptr) *level_ = transfers_.size();
}

ActiveTransfers::PushResult ActiveTransfers::Push(TransferId id, size_t num_ranges) {
  MutexLock lock(mutex_);
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second.overflowed) return PushResult::kUnknown;
  if (num_ranges > kPushedRangesMax - it->second.num_ranges) {
    it->second.overflowed = true;
    return PushResult::kOverflow;
  }
  it->second.num_ranges += num_ranges;
  return PushResult::kAccepted;
}

void ActiveTransfers::Gathered(TransferId id, size_t num_ranges) {
  MutexLock lock(mutex_);
  auto it = transfers_.find(id);
  if (it == transfers_.end()) return;
  it->second.num_ranges -= std::min(num_ranges, it->second.num_ranges);
}

bool ActiveTransfers::ShutDown() {
  MutexLock lock(mutex_);
  const bool first = !shut_down_;
  shut_down_ = true;
  return first;
}

}  // namespace baton::kvtransfer
