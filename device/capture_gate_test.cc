// The gate keeps captures and changes of communicators apart, and never makes a capture wait.
#include "device/capture_gate.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

TEST(CaptureGate, RefusesACaptureWhileACommunicatorChanges) {
  CaptureGate gate;
  ASSERT_TRUE(gate.BeginCommunicatorChange(kLong));
  EXPECT_FALSE(gate.TryBeginCapture());
  ASSERT_TRUE(gate.BeginCommunicatorChange(kLong)) << "two communicators may change at a time";
  gate.EndCommunicatorChange();
  EXPECT_FALSE(gate.TryBeginCapture());
  gate.EndCommunicatorChange();
  EXPECT_TRUE(gate.TryBeginCapture());
  gate.EndCapture();
}

TEST(CaptureGate, ACommunicatorWaitsForTheCaptureThatIsOpen) {
  CaptureGate gate;
  ASSERT_TRUE(gate.TryBeginCapture());
  ASSERT_TRUE(gate.TryBeginCapture()) << "two programs may capture at a time";
  std::atomic<bool> entered{false};
  std::thread communicator([&] {
    EXPECT_TRUE(gate.BeginCommunicatorChange(kLong));
    entered = true;
    gate.EndCommunicatorChange();
  });
  while (gate.TryBeginCapture()) gate.EndCapture();  // Until it waits.
  EXPECT_FALSE(entered);
  gate.EndCapture();
  EXPECT_FALSE(gate.TryBeginCapture()) << "one that waits goes first";
  EXPECT_FALSE(entered);
  gate.EndCapture();
  communicator.join();
  EXPECT_TRUE(entered);
}

TEST(CaptureGate, SaysThatACaptureIsStillOpenAfterTheLimit) {
  CaptureGate gate;
  ASSERT_TRUE(gate.TryBeginCapture());
  EXPECT_FALSE(gate.BeginCommunicatorChange(std::chrono::milliseconds(5)));
  gate.EndCommunicatorChange();
  gate.EndCapture();
  EXPECT_TRUE(gate.TryBeginCapture());
  gate.EndCapture();
}

}  // namespace
}  // namespace baton
