// Goal: the base library keeps its promises: limits hold, closing wakes, macros pass errors on.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strong_id.h"
#include "common/base/thread_checker.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(BoundedQueue, RefusesWhenFullAndKeepsOrder) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.PopAll(Duration::zero()), (std::vector<int>{1, 2}));
  EXPECT_TRUE(queue.TryPush(4));
}

TEST(BoundedQueue, CloseWakesTheWaiterAndKeepsWhatIsThere) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(7));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(8));
  EXPECT_EQ(queue.PopAll(seconds(60)), std::vector<int>{7});
  EXPECT_TRUE(queue.PopAll(seconds(60)).empty());
}

TEST(BoundedQueue, WakeEndsALongWait) {
  BoundedQueue<int> queue(4);
  std::thread waker([&] { queue.Wake(); });
  EXPECT_TRUE(queue.PopAll(seconds(60)).empty());
  waker.join();
}

TEST(BoundedQueue, ManyProducersLoseNothing) {
  BoundedQueue<int> queue(100000);
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&queue] {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(queue.TryPush(i));
    });
  }
  size_t seen = 0;
  while (seen < 4000) seen += queue.PopAll(milliseconds(100)).size();
  for (auto& t : producers) t.join();
  EXPECT_EQ(seen, 4000u);
}

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusMacros, PassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Annotate(absl::NotFoundError("x"), "model m").message(), "model m: x");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "model m").ok());
}

TEST(Clock, AddSaturatesInsteadOfWrapping) {
  FakeClock clock;
  EXPECT_EQ(SaturatingAdd(clock.Now(), Duration::max()), kNever);
  clock.Advance(seconds(1));
  EXPECT_EQ(clock.Now() - TimePoint(Duration(0)), seconds(2));
}

TEST(Log, ParsesItsLevelsAndNamesABadOne) {
  EXPECT_TRUE(ParseLogLevel("warning").ok());
  EXPECT_EQ(ParseLogLevel("loud").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Log, EscapesWhatCouldForgeALine) {
  testing::internal::CaptureStderr();
  LogInfo("hello", {{"text", "a\nb \"c\""}, {"n", 3}});
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find(R"(text="a\nb \"c\"" n=3)"), std::string::npos) << line;
}

TEST(CheckDeathTest, PrintsConditionAndValues) {
  const int blocks = 3;
  EXPECT_DEATH(CHECK_EQ(blocks, 4) << "block audit", "blocks.*3 vs 4.*block audit");
}

TEST(ThreadCheckerDeathTest, CatchesASecondThread) {
  ThreadChecker checker;
  checker.Check();
  EXPECT_DEATH(std::thread([&] { checker.Check(); }).join(), "does not own");
}

TEST(StrongId, ComparesByValue) { EXPECT_LT(BlockId(1), BlockId(2)); }

}  // namespace
}  // namespace baton
