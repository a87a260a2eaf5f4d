// Short texts pass long ones; limits and stopping.
#include "router/text/text_pool.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

using std::chrono::seconds;

constexpr size_t kLong = 1 << 20;

TEST(TextPool, ShortTextsDoNotWaitForLongOnes) {
  TextPool pool({.threads = 2});
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(pool.Submit(kLong, [released] { released.wait(); }));
  std::promise<void> done;
  ASSERT_TRUE(pool.Submit(10, [&done] { done.set_value(); }));
  EXPECT_EQ(done.get_future().wait_for(seconds(10)), std::future_status::ready);
  release.set_value();
}

TEST(TextPool, LongTextsDoNotStarveBehindShortOnes) {
  TextPool pool({.threads = 2});
  std::atomic<bool> stop = false;
  // Both threads would be busy with short texts for ever.
  std::function<void()> again = [&] {
    if (!stop && !pool.Submit(1, again)) stop = true;
  };
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(pool.Submit(1, again));
  std::promise<void> done;
  ASSERT_TRUE(pool.Submit(kLong, [&done] { done.set_value(); }));
  EXPECT_EQ(done.get_future().wait_for(seconds(10)), std::future_status::ready);
  stop = true;
  pool.Stop();
}

TEST(TextPool, AFullQueueRefusesAndAStoppedPoolDropsWhatWaits) {
  TextPool pool({.threads = 2, .queue_max = 2});
  std::promise<void> started;
  std::promise<void> release;
  ASSERT_TRUE(pool.Submit(kLong, [&] {
    started.set_value();
    release.get_future().wait();
  }));
  started.get_future().wait();
  auto ran = std::make_shared<std::atomic<int>>(0);
  EXPECT_TRUE(pool.Submit(kLong, [ran] { ++*ran; }));
  EXPECT_TRUE(pool.Submit(kLong, [ran] { ++*ran; }));
  EXPECT_FALSE(pool.Submit(kLong, [ran] { ++*ran; }));
  EXPECT_EQ(pool.queued(), 2u);
  std::thread stopper([&pool] { pool.Stop(); });
  // Stop drops the queue before it waits for what runs.
  while (pool.queued() > 0) std::this_thread::yield();
  release.set_value();
  stopper.join();
  EXPECT_EQ(*ran, 0);
  EXPECT_EQ(ran.use_count(), 1);
  EXPECT_FALSE(pool.Submit(1, [] {}));
}

}  // namespace
}  // namespace baton::router
