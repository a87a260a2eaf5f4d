#include "router/text/text_pool.h"

#include <chrono>
#include <utility>

#include "common/base/check.h"

namespace baton::router {
namespace {

// Idle threads look round this often even without a signal.
constexpr std::chrono::seconds kIdleWait(1);

}  // namespace

TextPool::TextPool(const Options& options) : options_(options) {
  CHECK_GE(options_.threads, 2u);
  for (size_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this, i] { Run(/*small_only=*/i == 0); });
  }
}

TextPool::~TextPool() { Stop(); }

bool TextPool::Submit(size_t bytes, std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    std::deque<std::function<void()>>& queue = bytes <= options_.small_bytes ? small_ : large_;
    if (stopped_ || queue.size() >= options_.queue_max) return false;
    queue.push_back(std::move(task));
  }
  // All: the one that wakes must not be the one that may not take the task.
  changed_.SignalAll();
  return true;
}

void TextPool::SubmitAlways(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    large_.push_back(std::move(task));
  }
  changed_.SignalAll();
}

void TextPool::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    dropped.swap(large_);
    for (auto& task : small_) dropped.push_back(std::move(task));
    small_.clear();
  }
  changed_.SignalAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

size_t TextPool::queued() const {
  MutexLock lock(mutex_);
  return small_.size() + large_.size();
}

std::function<void()> TextPool::Next(bool small_only) {
  MutexLock lock(mutex_);
  while (true) {
    if (stopped_) return nullptr;
    std::deque<std::function<void()>>* queue = nullptr;
    if (!small_only && !large_.empty()) {
      queue = &large_;
    } else if (!small_.empty()) {
      queue = &small_;
    }
    if (queue != nullptr) {
      std::function<void()> task = std::move(queue->front());
      queue->pop_front();
      return task;
    }
    changed_.WaitFor(mutex_, kIdleWait);
  }
}

void TextPool::Run(bool small_only) {
  while (std::function<void()> task = Next(small_only)) task();
}

}  // namespace baton::router
