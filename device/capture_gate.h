// Keeps two things apart that one GPU must not do at a time: capturing a graph, and making,
// aborting or destroying a communicator (which allocates, frees and synchronises behind our back).
//
// The engine never waits: while a communicator changes it is refused, and launches that step
// without a graph. Communicators wait; a capture takes milliseconds. Lives in the Device and is
// defined here alone, because plug-ins that share no code share it. Thread-safe.
#ifndef BATON_DEVICE_CAPTURE_GATE_H_
#define BATON_DEVICE_CAPTURE_GATE_H_

#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace baton {

class CaptureGate {
 public:
  // False while a communicator changes or waits to. After true: EndCapture.
  bool TryBeginCapture() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (communicators_ > 0) return false;
    ++captures_;
    return true;
  }
  void EndCapture() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --captures_;
    if (captures_ == 0) idle_.SignalAll();
  }
  // Refuses captures from now on and waits until none is open; false: one still is after `limit`.
  // Either way followed by EndCommunicatorChange. Several communicators may change at a time.
  bool BeginCommunicatorChange(Duration limit) EXCLUDES(mutex_) {
    const TimePoint deadline = SaturatingAdd(Clock::Real()->Now(), limit);
    MutexLock lock(mutex_);
    ++communicators_;
    while (captures_ > 0) {
      const TimePoint now = Clock::Real()->Now();
      if (now >= deadline) return false;
      idle_.WaitFor(mutex_, deadline - now);
    }
    return true;
  }
  void EndCommunicatorChange() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --communicators_;
  }

 private:
  Mutex mutex_;
  CondVar idle_;
  int captures_ GUARDED_BY(mutex_) = 0;
  int communicators_ GUARDED_BY(mutex_) = 0;
};

}  // namespace baton

#endif  // BATON_DEVICE_CAPTURE_GATE_H_
