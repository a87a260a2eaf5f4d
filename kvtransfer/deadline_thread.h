// Drives all time-outs of a sender or receiver from a thread of its own, so that a wedged engine,
// an idle link or a stuck peer still expires. The thread polls in real time; whoever handles the
// tick compares deadlines with the injected Clock, so tests move time with a FakeClock.
// Thread-safe.
#ifndef BATON_KVTRANSFER_DEADLINE_THREAD_H_
#define BATON_KVTRANSFER_DEADLINE_THREAD_H_

#include <functional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton::kvtransfer {

class DeadlineThread {
 public:
  // `tick` runs on this thread every `poll_interval` while active; it must not block.
  DeadlineThread(Duration poll_interval, std::function<void()> tick);
  ~DeadlineThread();  // Stops.

  // Inactive (the state at start): nothing is pending and no tick comes.
  void SetActive(bool active) EXCLUDES(mutex_);
  // Joins; no tick comes after it. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const Duration poll_interval_;
  const std::function<void()> tick_;
  Mutex mutex_;
  CondVar changed_;
  bool active_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_DEADLINE_THREAD_H_
