#include "device/cpu/thread_pool.h"

#include "common/base/check.h"

namespace baton {
namespace {

// About 5 us on current processors: longer than the usual imbalance of a stage, much shorter than a
// scheduler's time slice.
constexpr int kSpins = 150;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until value == wanted. Every writer of `value` notifies.
void AwaitEqual(const std::atomic<int32_t>& value, int32_t wanted) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) == wanted) return;
    Pause();
  }
  for (int32_t seen = value.load(); seen != wanted; seen = value.load()) value.wait(seen);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    helpers_.emplace_back([this, thread] { HelperMain(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(const std::vector<Stage>& stages, bool wake_helpers) {
  if (!wake_helpers || helpers_.empty()) {
    for (const Stage& stage : stages) {
      for (int32_t item = 0; item < stage.num_items; ++item) stage.run(item, 0);
    }
    return;
  }
  if (num_states_ < stages.size()) {
    states_ = std::make_unique<StageState[]>(stages.size());
    num_states_ = stages.size();
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    states_[i].next.store(0, std::memory_order_relaxed);
    states_[i].done.store(0, std::memory_order_relaxed);
  }
  region_ = &stages;
  open_ = true;
  ++epoch_;
  epoch_.notify_all();
  RunStages(stages, 0);
  open_ = false;
  AwaitEqual(inside_, 0);
}

void ThreadPool::RunStages(const std::vector<Stage>& stages, int thread) {
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    StageState& state = states_[i];
    int32_t finished = 0;
    for (int32_t item = state.next.fetch_add(1, std::memory_order_relaxed); item < stage.num_items;
         item = state.next.fetch_add(1, std::memory_order_relaxed)) {
      stage.run(item, thread);
      ++finished;
    }
    if (finished > 0 &&
        state.done.fetch_add(finished, std::memory_order_acq_rel) + finished == stage.num_items) {
      state.done.notify_all();
      continue;
    }
    AwaitEqual(state.done, stage.num_items);
  }
}

void ThreadPool::HelperMain(int thread) {
  uint32_t seen = 0;
  while (!stop_) {
    epoch_.wait(seen);
    seen = epoch_;
    ++inside_;
    if (open_) RunStages(*region_, thread);
    if (--inside_ == 0) inside_.notify_all();
  }
}

}  // namespace baton
