// One thread that runs posted functions in order: the single owner of some state. The sender and
// the receiver each have two: one owns the protocol's state, one calls observers, so that an
// observer can call back and a slow observer delays nobody else's time-outs.
//
// Limit: producers bound their own share (a link its queued messages, an engine its open transfers
// and pushed ranges, a wire its operations), so kWorkItemsMax is never reached; reaching it is a
// bug here. Thread-safe.
#ifndef BATON_KVTRANSFER_WORK_THREAD_H_
#define BATON_KVTRANSFER_WORK_THREAD_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "common/base/mutex.h"

namespace baton::kvtransfer {

inline constexpr size_t kWorkItemsMax = size_t{1} << 22;

class WorkThread {
 public:
  WorkThread();
  ~WorkThread();  // Stops.

  // False once stopped; then `work` is destroyed on the caller's thread without being run.
  bool Post(std::function<void()> work) EXCLUDES(mutex_);
  // Runs what was posted before, refuses the rest, joins. Idempotent. REQUIRES: not called from the
  // thread itself.
  void Stop() EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> items_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WORK_THREAD_H_
