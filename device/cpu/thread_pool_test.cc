#include "device/cpu/thread_pool.h"

#include <atomic>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ThreadPool, RunsEveryItemOnceAndStagesInOrder) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    constexpr int kStages = 20;
    constexpr int32_t kItems = 37;
    std::vector<std::unique_ptr<std::atomic<int>[]>> counts;
    std::atomic<int> violations{0};
    std::vector<Stage> stages;
    for (int s = 0; s < kStages; ++s) {
      counts.push_back(std::make_unique<std::atomic<int>[]>(kItems));
      stages.push_back({[&, s](int32_t item, int thread) {
                          if (thread < 0 || thread >= threads) ++violations;
                          ++counts[static_cast<size_t>(s)][static_cast<size_t>(item)];
                          // All items of the stage before are done.
                          for (int32_t i = 0; s > 0 && i < kItems; ++i) {
                            const auto at = static_cast<size_t>(i);
                            if (counts[static_cast<size_t>(s - 1)][at] < 1) ++violations;
                          }
                        },
                        s == 7 ? 0 : kItems});
    }
    // Stage 7 has no items this time: its successor must not look at it.
    stages[8].run = [&](int32_t item, int) { ++counts[8][static_cast<size_t>(item)]; };
    for (int round = 0; round < 200; ++round) {
      for (auto& c : counts) {
        for (size_t i = 0; i < kItems; ++i) c[i] = 0;
      }
      pool.Run(stages, round % 3 != 0);
      for (size_t s = 0; s < kStages; ++s) {
        for (size_t i = 0; i < kItems; ++i) ASSERT_EQ(counts[s][i], s == 7 ? 0 : 1);
      }
      ASSERT_EQ(violations, 0);
    }
  }
}

TEST(ThreadPool, ThreadsShareScratchWithoutOverlap) {
  ThreadPool pool(3);
  std::atomic<int> busy[3] = {};
  std::atomic<int> violations{0};
  std::vector<Stage> stages(5, {[&](int32_t, int thread) {
                                  if (busy[thread]++ != 0) ++violations;
                                  --busy[thread];
                                },
                                100});
  for (int round = 0; round < 100; ++round) pool.Run(stages, true);
  EXPECT_EQ(violations, 0);
}

TEST(ThreadPool, StopsWithoutEverHavingRun) { ThreadPool pool(4); }

}  // namespace
}  // namespace baton
