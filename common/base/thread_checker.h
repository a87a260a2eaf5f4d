// CHECKs that a single-owner class is used by one thread: the first that calls Check() after
// construction or Detach().
#ifndef BATON_COMMON_BASE_THREAD_CHECKER_H_
#define BATON_COMMON_BASE_THREAD_CHECKER_H_

#include <atomic>
#include <thread>

#include "common/base/check.h"

namespace baton {

class ThreadChecker {
 public:
  void Check() const {
    std::thread::id expected{};
    const std::thread::id self = std::this_thread::get_id();
    if (owner_.compare_exchange_strong(expected, self)) return;
    CHECK(expected == self) << "called from a thread that does not own this object";
  }
  void Detach() { owner_.store({}); }

 private:
  mutable std::atomic<std::thread::id> owner_{};
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_THREAD_CHECKER_H_
