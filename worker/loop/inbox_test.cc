// Goal: what is pushed is taken once, by kind; only starts are ever refused for lack of room; and
// idle() never says yes while something waits or is being handled.
#include "worker/loop/inbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace baton::worker {
namespace {

SequenceKey Key(uint64_t request, uint64_t session = 1) {
  return {RouterSessionId(session), RequestId(request), 0};
}

StartSequence Start(uint64_t request) {
  StartSequence start;
  start.key = Key(request);
  return start;
}

TEST(Inbox, GivesStartsOutInOrderAndOnce) {
  Inbox inbox(10);
  ASSERT_TRUE(inbox.Push(Start(1)).ok());
  ASSERT_TRUE(inbox.Push(Start(2)).ok());
  EXPECT_EQ(inbox.num_starts(), 2u);
  const InboxContents contents = inbox.TakeAll(Duration::zero());
  ASSERT_EQ(contents.starts.size(), 2u);
  EXPECT_EQ(contents.starts[1].key, Key(2));
  EXPECT_TRUE(inbox.TakeAll(Duration::zero()).empty());
}

TEST(Inbox, RefusesStartsAboveTheLimitButNothingElse) {
  Inbox inbox(1);
  ASSERT_TRUE(inbox.Push(Start(1)).ok());
  EXPECT_EQ(inbox.Push(Start(2)).code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 10000; ++i) {
    ASSERT_TRUE(inbox.Push(GrantCredits{Key(1), 2}).ok());
    ASSERT_TRUE(inbox.Push(CancelSequence{Key(1)}).ok());
  }
  ASSERT_TRUE(inbox.Push(SessionEnded{RouterSessionId(1)}).ok());
  ASSERT_TRUE(inbox.Push(BeginDrain{}).ok());
  const InboxContents contents = inbox.TakeAll(Duration::zero());
  EXPECT_EQ(contents.credits.at(Key(1)), 20000u);
  EXPECT_EQ(contents.cancels.size(), 1u);
  EXPECT_EQ(contents.ended_sessions.size(), 1u);
  EXPECT_TRUE(contents.drain);
}

TEST(Inbox, RefusedCommandsNameTheFirstReasonAndTransferEventsStillArrive) {
  Inbox inbox(1);
  inbox.RefuseCommands("device lost");
  inbox.RefuseCommands("stopped");
  const absl::Status status = inbox.Push(Start(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "device lost");
  inbox.Push(TransferEvent());
  EXPECT_EQ(inbox.TakeAll(Duration::zero()).transfer_events.size(), 1u);
}

TEST(Inbox, IsIdleOnlyWhenTheLoopIsAndNothingWaits) {
  Inbox inbox(4);
  EXPECT_TRUE(inbox.idle());
  ASSERT_TRUE(inbox.Push(Start(1)).ok());
  EXPECT_FALSE(inbox.idle());
  inbox.TakeAll(Duration::zero());
  EXPECT_FALSE(inbox.idle()) << "taken, but not handled yet";
  inbox.SetLoopIdle(true);
  EXPECT_TRUE(inbox.idle());
}

TEST(Inbox, APushAndAWakeEndTheWait) {
  Inbox inbox(4);
  std::thread pusher([&] { EXPECT_TRUE(inbox.Push(Start(1)).ok()); });
  EXPECT_EQ(inbox.TakeAll(std::chrono::seconds(60)).starts.size(), 1u);
  pusher.join();
  inbox.Wake();
  EXPECT_TRUE(inbox.TakeAll(std::chrono::seconds(60)).empty());
}

}  // namespace
}  // namespace baton::worker
