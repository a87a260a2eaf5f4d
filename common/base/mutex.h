// The only lock of the project: std::mutex with clang's thread-safety annotations. (absl::Mutex is
// reported as a race by ThreadSanitizer in Debian's build of Abseil; std::mutex is understood.)
// Condition waits always take a deadline or a stop condition of their own: there is no untimed
// Wait.
#ifndef BATON_COMMON_BASE_MUTEX_H_
#define BATON_COMMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

// Defines GUARDED_BY, PT_GUARDED_BY and NO_THREAD_SAFETY_ANALYSIS, which would clash with ours.
#include "absl/base/thread_annotations.h"

#if defined(__clang__)
#define BATON_TSA(x) __attribute__((x))
#else
#define BATON_TSA(x)
#endif

#define CAPABILITY(x) BATON_TSA(capability(x))
#define SCOPED_CAPABILITY BATON_TSA(scoped_lockable)
#define REQUIRES(...) BATON_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) BATON_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) BATON_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) BATON_TSA(release_capability(__VA_ARGS__))

namespace baton {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Waits until signalled or `timeout` has passed; may wake early. Returns false on time-out.
  // The usual loop: while (!condition && now < deadline) cv.WaitFor(mutex, ...).
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // system_clock would move with wall-clock steps; wait_for uses the steady clock.
    const bool signalled = cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_MUTEX_H_
