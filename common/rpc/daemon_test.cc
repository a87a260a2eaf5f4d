// Signals and the ready line: what the shell does without gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>

#include "common/rpc/ready_line.h"
#include "common/rpc/signal_watcher.h"

namespace baton::rpc {
namespace {

// Runs `body` in a child process and returns its wait status. The body must end the process.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // A child that hangs dies by SIGALRM.
    body();
    _exit(99);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(SignalWatcher, CallsBackOnAnotherThreadForTermAndInt) {
  for (const int signal : {SIGTERM, SIGINT}) {
    std::promise<std::pair<int, std::thread::id>> got;
    {
      SignalWatcher watcher([&got](int s) { got.set_value({s, std::this_thread::get_id()}); });
      ASSERT_EQ(kill(getpid(), signal), 0);
      auto future = got.get_future();
      ASSERT_EQ(future.wait_for(std::chrono::seconds(10)), std::future_status::ready);
      const auto [number, thread] = future.get();
      EXPECT_EQ(number, signal);
      EXPECT_NE(thread, std::this_thread::get_id());
    }
  }
}

TEST(SignalWatcher, PutsBackWhatWasThereBefore) {
  struct sigaction before{};
  struct sigaction after{};
  ASSERT_EQ(sigaction(SIGTERM, nullptr, &before), 0);
  {
    SignalWatcher watcher([](int) {});
  }
  ASSERT_EQ(sigaction(SIGTERM, nullptr, &after), 0);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(SignalWatcher, SecondSignalEndsAStuckProcessAtOnce) {
  const int status = InChild([] {
    SignalWatcher watcher([](int) {
      kill(getpid(), SIGTERM);
      for (;;) pause();  // A shutdown that never ends.
    });
    kill(getpid(), SIGINT);
    for (;;) pause();
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

TEST(SignalWatcher, IgnoresBrokenPipes) {
  const int status = InChild([] {
    SignalWatcher watcher([](int) {});
    int ends[2];
    if (pipe(ends) != 0) _exit(98);
    close(ends[0]);
    const ssize_t written = write(ends[1], "x", 1);
    _exit(written == -1 && errno == EPIPE ? 0 : 97);
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ReadyLine, NamesRoleAndAddresses) {
  EXPECT_EQ(FormatReadyLine("router", {{"listen", "127.0.0.1:5"}, {"metrics", "[::1]:6"}}),
            "ready role=router listen=127.0.0.1:5 metrics=[::1]:6");
}

TEST(ReadyLineDeathTest, RefusesWhatWouldSplitIt) {
  EXPECT_DEATH(FormatReadyLine("router", {{"listen", "a b"}}), "ready line");
  EXPECT_DEATH(FormatReadyLine("router\n", {}), "ready line");
}

}  // namespace
}  // namespace baton::rpc
