#include "kvtransfer/wire_operations.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::kvtransfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WireOperationsTest : public ::testing::Test {
 protected:
  WireEnd::Completion Log() {
    return [this](const absl::Status& s) { statuses_.push_back(s.code()); };
  }

  static void CompleteWithItsRefusal(WireOperations& operations) {
    const absl::Status refusal = operations.At(0)->refusal;
    operations.CompleteFront(refusal);
  }

  WireOperations operations_{WireDirection::kSend};
  std::vector<absl::StatusCode> statuses_;
  std::byte bytes_[8] = {};
};

TEST_F(WireOperationsTest, ServesFromTheFront) {
  EXPECT_EQ(operations_.At(0), nullptr);
  operations_.PostSend(7, bytes_, Log());
  operations_.PostSend(8, {}, Log());
  ASSERT_NE(operations_.At(0), nullptr);
  EXPECT_EQ(operations_.At(0)->sequence_number, 7u);
  EXPECT_EQ(operations_.At(0)->bytes.data(), bytes_);
  EXPECT_EQ(operations_.At(1)->sequence_number, 8u);
  EXPECT_EQ(operations_.At(2), nullptr);
  operations_.CompleteFront(absl::OkStatus());
  EXPECT_EQ(operations_.At(0)->sequence_number, 8u);
  operations_.CompleteFront(absl::DataLossError("lost"));
  EXPECT_THAT(statuses_, ElementsAre(absl::StatusCode::kOk, absl::StatusCode::kDataLoss));
}

TEST_F(WireOperationsTest, MarksTheDirectionThatTheEndDoesNotDo) {
  operations_.PostReceive(1, absl::MakeSpan(bytes_), Log());
  EXPECT_THAT(std::string(operations_.At(0)->refusal.message()), HasSubstr("only sends"));
  CompleteWithItsRefusal(operations_);
  WireOperations receives(WireDirection::kReceive);
  receives.PostSend(1, bytes_, Log());
  EXPECT_THAT(std::string(receives.At(0)->refusal.message()), HasSubstr("only receives"));
  CompleteWithItsRefusal(receives);
}

TEST_F(WireOperationsTest, KeepsTheFirstError) {
  EXPECT_TRUE(operations_.broken().ok());
  EXPECT_TRUE(operations_.Break(absl::CancelledError("first")));
  EXPECT_FALSE(operations_.Break(absl::DataLossError("second")));
  EXPECT_EQ(operations_.broken(), absl::CancelledError("first"));
}

// What a completion holds must be gone before somebody hears that nothing is left.
TEST_F(WireOperationsTest, IsQuiescentOnceCompletionsAndTheirCapturesAreGone) {
  bool during = true;
  bool at_end_of_capture = true;
  auto captured =
      std::shared_ptr<void>(nullptr, [&](void*) { at_end_of_capture = operations_.Quiescent(); });
  EXPECT_TRUE(operations_.Quiescent());
  operations_.PostSend(1, bytes_, [this, &during, held = std::move(captured)](const absl::Status&) {
    during = operations_.Quiescent();
  });
  EXPECT_FALSE(operations_.Quiescent());
  std::thread serving([&] { operations_.CompleteFront(absl::OkStatus()); });
  operations_.AwaitQuiescence();
  serving.join();
  EXPECT_FALSE(during);
  EXPECT_FALSE(at_end_of_capture);
  EXPECT_TRUE(operations_.Quiescent());
}

TEST_F(WireOperationsTest, MayBePostedToWhileItIsServed) {
  constexpr uint64_t kCount = 2000;
  std::thread posting([&] {
    for (uint64_t i = 0; i < kCount; ++i) operations_.PostSend(i, bytes_, [](const auto&) {});
  });
  for (uint64_t next = 0; next < kCount;) {
    if (const WireOperation* front = operations_.At(0)) {
      ASSERT_EQ(front->sequence_number, next++);
      operations_.CompleteFront(absl::OkStatus());
    } else {
      std::this_thread::yield();
    }
  }
  posting.join();
  EXPECT_TRUE(operations_.Quiescent());
}

using WireOperationsDeathTest = WireOperationsTest;

TEST_F(WireOperationsDeathTest, TakesNoMoreThanTheLimits) {
  for (size_t i = 0; i < kWireOperationsMax; ++i) operations_.PostSend(i, {}, Log());
  EXPECT_DEATH(operations_.PostSend(0, {}, Log()), "kWireOperationsMax");
  WireOperations other(WireDirection::kSend);
  EXPECT_DEATH(other.PostSend(0, {bytes_, kWireOperationBytesMax + 1}, Log()),
               "kWireOperationBytesMax");
  while (operations_.At(0) != nullptr) operations_.CompleteFront(absl::OkStatus());
}

}  // namespace
}  // namespace baton::kvtransfer
