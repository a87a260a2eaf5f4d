#include "kvtransfer/work_thread.h"

#include <chrono>
#include <utility>

#include "common/base/check.h"

namespace baton::kvtransfer {

WorkThread::WorkThread() : thread_([this] { Run(); }) {}

WorkThread::~WorkThread() { Stop(); }

bool WorkThread::Post(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    CHECK_LT(items_.size(), kWorkItemsMax);
    items_.push_back(std::move(work));
  }
  ready_.Signal();
  return true;
}

void WorkThread::Stop() {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  ready_.Signal();
  thread_.join();
}

void WorkThread::Run() {
  for (;;) {
    std::deque<std::function<void()>> items;
    {
      MutexLock lock(mutex_);
      while (items_.empty() && !stopping_) ready_.WaitFor(mutex_, std::chrono::seconds(1));
      if (items_.empty()) return;
      items.swap(items_);
    }
    for (std::function<void()>& item : items) {
      item();
      item = nullptr;  // What it captured goes now, not with the batch.
    }
  }
}

}  // namespace baton::kvtransfer
