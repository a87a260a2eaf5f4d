// The NCCL wire over the real thing. With two GPUs: the suite of all wires (kill and stop of a peer
// process: kvtransfer/process). With one: what needs no peer. Without: what the plug-in answers.
//
// Two ranks of one process on one GPU, which NCCL can be asked for, are no substitute: they write
// through bare pointers into each other's buffers, also when the other has aborted and freed them
// (seen: an illegal access). Between processes, and between GPUs, NCCL maps them, which keeps them.
#include "kvtransfer/nccl/nccl_wire.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "device/device_plugin.h"
#include "gmock/gmock.h"
#include "kvtransfer/nccl/gpu_wire_testing.h"
#include "kvtransfer/nccl/owned_communicator.h"
#include "kvtransfer/nccl/two_process_wire.h"
#include "kvtransfer/wire_conformance.h"
#include "tests/gpu/gpu_testing.h"

namespace baton::kvtransfer {

std::unique_ptr<Wire> NewTwoGpuWire() {
  auto offers = MakeHostStagedNcclWire(1, /*listens=*/true);
  CHECK(offers.ok()) << offers.status();
  auto connects = MakeHostStagedNcclWire(0, /*listens=*/false);
  CHECK(connects.ok()) << connects.status();
  return std::make_unique<TwoProcessWire>(*std::move(offers), *std::move(connects));
}

INSTANTIATE_TEST_SUITE_P(TwoGpus, WireConformanceTest,
                         ::testing::Values(WireFactory{"nccl", NewTwoGpuWire, WhyNotTwoGpus()}),
                         WireFactoryName);

namespace {

TEST(NcclPluginTest, LoadsWithOrWithoutAGpu) {
  const auto plugin = NcclPluginForTests();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_STREQ((*plugin)->abi_id, DevicePluginAbiId());
}

TEST(NcclPluginTest, SaysThatThereIsNoGpu) {
  if (HasCudaDevice()) GTEST_SKIP() << "there is a GPU";
  const auto plugin = NcclPluginForTests();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  const auto made = (*plugin)->create({});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << made.status();
}

class OneGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_CUDA_DEVICE();
    device_ = MakeCudaDevice();
    communicators_ = Make();
  }
  static std::unique_ptr<PairCommunicators> Make() {
    const auto plugin = NcclPluginForTests();
    CHECK(plugin.ok()) << plugin.status();
    auto made = (*plugin)->create({});
    CHECK(made.ok()) << made.status();
    return *std::move(made);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<PairCommunicators> communicators_;
};

// Non-blocking creation, and abort in the middle of it.
TEST_F(OneGpuTest, AHalfWhosePeerNeverComesIsAborted) {
  for (const PairRole role : {PairRole::kReceiver, PairRole::kSender}) {
    const auto id = communicators_->MintId();
    ASSERT_TRUE(id.ok()) << id.status();
    const TimePoint start = Clock::Real()->Now();
    auto half = communicators_->Make(role, *id, 2);
    ASSERT_TRUE(half.ok()) << half.status();
    EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(5)) << "Make does not wait";
    for (int i = 0; i < 20; ++i) {
      const auto ready = (*half)->Ready();
      ASSERT_TRUE(ready.ok()) << ready.status();
      EXPECT_FALSE(*ready);
      Pause(std::chrono::milliseconds(10));
    }
    OwnedCommunicator owned(*std::move(half), device_->capture_gate(), nullptr);
    owned.BeginEnd(/*orderly=*/false, [] {});
    ASSERT_TRUE(Eventually([&] { return owned.Quiet(); }));
  }
}

// Two processes on one GPU: TCP through page-locked memory, the slots in memory of the GPU.
TEST_F(OneGpuTest, PairsOnOneGpuGoOverTcpThroughMemoryOfTheHost) {
  if (communicators_->accepts_shared_device()) GTEST_SKIP() << "NCCL accepts this GPU twice";
  const int64_t used = device_->memory_used();
  auto wire = MakeNcclWire({}, std::move(communicators_), device_.get());
  ASSERT_TRUE(wire.ok()) << wire.status();
  EXPECT_EQ(device_->memory_used() - used, 4 * PairCommunicatorBytes(NcclWireOptions().num_ctas))
      << "counted";
  EXPECT_EQ((*wire)->staging_place(), StagingPlace::kDevice);
  AcceptLog accepted;
  auto offer = (*wire)->Offer(kBound, accepted.Callback());
  ASSERT_TRUE(offer.ok());
  auto sender = (*wire)->Connect(*offer, kBound);
  ASSERT_TRUE(sender.ok()) << sender.status();
  ASSERT_TRUE(accepted.Await());
  auto receiver = accepted.Take();
  ASSERT_NE(receiver, nullptr) << accepted.status();
  constexpr size_t kBytes = 4 << 20;
  const auto from = device_->AllocateStaging(kBytes, StagingPlace::kDevice);
  const auto to = device_->AllocateStaging(kBytes, StagingPlace::kDevice);
  ASSERT_TRUE(from.ok() && to.ok());
  for (uint64_t i = 0; i < 10; ++i) {
    const std::vector<std::byte> pattern = PatternBytes(kBytes, i);
    ASSERT_TRUE(device_->CopyStaging(pattern, from->get()).ok());
    CompletionLog sent, received;
    receiver->PostReceive(i, {to->get(), kBytes}, received.Next());
    (*sender)->PostSend(i, {from->get(), kBytes}, sent.Next());
    ASSERT_TRUE(received.Await(1) && sent.Await(1));
    ASSERT_TRUE(received.statuses()[0].ok()) << received.statuses()[0];
    std::vector<std::byte> arrived(kBytes);
    ASSERT_TRUE(device_->CopyStaging({to->get(), kBytes}, arrived.data()).ok());
    ASSERT_EQ(arrived, pattern) << i;
  }
  sender->reset();
  receiver.reset();
  (*wire)->Shutdown();
  wire->reset();
  EXPECT_EQ(device_->memory_used() - used, static_cast<int64_t>(2 * kBytes));
}

TEST_F(OneGpuTest, RefusesAGpuThatIsNotThereAndMemoryThatIsNot) {
  EXPECT_EQ((*NcclPluginForTests())->create({.ordinal = 99}).status().code(),
            absl::StatusCode::kNotFound);
  const auto reserved = device_->ReserveMemory(device_->memory_max(), "everything");
  ASSERT_EQ(reserved.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::kvtransfer
