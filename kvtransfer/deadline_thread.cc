#include "kvtransfer/deadline_thread.h"

#include <chrono>
#include <utility>

namespace baton::kvtransfer {

DeadlineThread::DeadlineThread(Duration poll_interval, std::function<void()> tick)
    : poll_interval_(poll_interval), tick_(std::move(tick)), thread_([this] { Run(); }) {}

DeadlineThread::~DeadlineThread() { Stop(); }

void DeadlineThread::SetActive(bool active) {
  {
    MutexLock lock(mutex_);
    if (active_ == active) return;
    active_ = active;
  }
  changed_.Signal();
}

void DeadlineThread::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  changed_.Signal();
  thread_.join();
}

void DeadlineThread::Run() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!stopping_) {
        changed_.WaitFor(mutex_, active_ ? poll_interval_ : Duration(std::chrono::seconds(1)));
      }
      if (stopping_) return;
      if (!active_) continue;
    }
    tick_();
  }
}

}  // namespace baton::kvtransfer
