// The ids that are in use, and how much each engine has queued: what Begin, Expect and Push must
// decide at once, on the caller's thread. Everything else about a transfer belongs to the core
// thread. An id is in use from Begin or Expect until its OnQuiescent is about to be called.
// Thread-safe.
#ifndef BATON_KVTRANSFER_ACTIVE_TRANSFERS_H_
#define BATON_KVTRANSFER_ACTIVE_TRANSFERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/strong_id.h"

namespace baton::kvtransfer {

// Ranges pushed and not yet gathered, per transfer.
inline constexpr size_t kPushedRangesMax = size_t{1} << 20;

class ActiveTransfers {
 public:
  // `level`, if given, always holds the number of ids in use; it must outlive this.
  explicit ActiveTransfers(size_t count_max, std::atomic<uint64_t>* level = nullptr)
      : count_max_(count_max), level_(level) {}

  // ERRORS: Unavailable: shut down; AlreadyExists; ResourceExhausted: count_max are in use.
  absl::Status Add(TransferId id) EXCLUDES(mutex_);
  void Remove(TransferId id) EXCLUDES(mutex_);

  enum class PushResult { kAccepted, kUnknown, kOverflow };
  // kOverflow once per transfer, kUnknown after it: the caller fails the transfer.
  PushResult Push(TransferId id, size_t num_ranges) EXCLUDES(mutex_);
  void Gathered(TransferId id, size_t num_ranges) EXCLUDES(mutex_);

  // Refuses from now on; false if it was shut down before.
  bool ShutDown() EXCLUDES(mutex_);

 private:
  struct Pushed {
    size_t num_ranges = 0;
    bool overflowed = false;
  };

  void PublishLevel() REQUIRES(mutex_);

  const size_t count_max_;
  std::atomic<uint64_t>* const level_;
  mutable Mutex mutex_;
  bool shut_down_ GUARDED_BY(mutex_) = false;
  std::unordered_map<TransferId, Pushed> transfers_ GUARDED_BY(mutex_);
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_ACTIVE_TRANSFERS_H_
