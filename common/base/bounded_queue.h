// A multi-producer queue with a limit, for handing work to the one thread that owns some state.
// Thread-safe. Close() wakes everybody; a closed queue accepts nothing and still gives out what it
// holds.
#ifndef BATON_COMMON_BASE_BOUNDED_QUEUE_H_
#define BATON_COMMON_BASE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t size_max) : size_max_(size_max) { CHECK_GT(size_max, 0u); }

  // False when full or closed; then `item` is dropped and nothing changes.
  [[nodiscard]] bool TryPush(T item) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= size_max_) return false;
      items_.push_back(std::move(item));
    }
    ready_.Signal();
    return true;
  }

  // Takes everything there is, in order; waits up to `timeout` for the first. Empty on time-out, on
  // Wake() and when closed and drained.
  std::vector<T> PopAll(Duration timeout) EXCLUDES(mutex_) {
    std::vector<T> out;
    MutexLock lock(mutex_);
    if (items_.empty() && !closed_ && !woken_ && timeout > Duration::zero()) {
      ready_.WaitFor(mutex_, timeout);
    }
    woken_ = false;
    out.reserve(items_.size());
    for (T& item : items_) out.push_back(std::move(item));
    items_.clear();
    return out;
  }

  // Makes the current or next PopAll return at once.
  void Wake() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    ready_.SignalAll();
  }

  void Close() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    ready_.SignalAll();
  }

  bool closed() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }
  size_t size() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }

 private:
  const size_t size_max_;
  mutable Mutex mutex_;
  CondVar ready_;
  std::deque<T> items_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
  bool woken_ GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_BOUNDED_QUEUE_H_
