// The threads of the CPU device. A region is a list of stages that run one after another; a stage
// is a number of items that any thread may take, in any order. Which thread takes which item never
// matters for results: items write disjoint outputs and each is computed in one fixed way.
//
// Threads take items as they come and a stage ends when its items are done, not when all threads
// have arrived: on a machine with more runnable threads than cores, a helper that gets no core
// holds nobody up. A thread that must wait spins for microseconds, then sleeps on a futex.
//
// Thread rule: Run is called by one thread at a time (the device's executor), which works along.
#ifndef BATON_DEVICE_CPU_THREAD_POOL_H_
#define BATON_DEVICE_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace baton {

// Work of one operation. Built once per program; only `num_items` changes from step to step.
struct Stage {
  // item in [0, num_items); thread in [0, num_threads()): the index of per-thread scratch.
  std::function<void(int32_t item, int thread)> run;
  int32_t num_items = 0;
};

class ThreadPool {
 public:
  // Starts num_threads - 1 helpers. REQUIRES: num_threads >= 1.
  explicit ThreadPool(int num_threads);
  // REQUIRES: no Run is active. Joins the helpers.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs the stages in order and returns when all are done. `stages` may have grown since the last
  // call, but must not change meanwhile. With wake_helpers false the caller does everything itself:
  // right for a region so short that waking a thread costs more.
  void Run(const std::vector<Stage>& stages, bool wake_helpers);

 private:
  struct alignas(64) StageState {
    std::atomic<int32_t> next{0};  // First item nobody has taken.
    std::atomic<int32_t> done{0};
  };

  void HelperMain(int thread);
  void RunStages(const std::vector<Stage>& stages, int thread);

  // A helper enters a region by incrementing inside_ and then seeing it open; Run closes it and
  // then waits for inside_ == 0 before it returns, so no helper ever sees a region's stages
  // afterwards.
  const std::vector<Stage>* region_ = nullptr;
  std::unique_ptr<StageState[]> states_;
  size_t num_states_ = 0;
  std::atomic<bool> open_{false};
  std::atomic<int32_t> inside_{0};
  std::atomic<uint32_t> epoch_{0};  // Bumped to wake helpers: a region opens, or the pool stops.
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace baton

#endif  // BATON_DEVICE_CPU_THREAD_POOL_H_
