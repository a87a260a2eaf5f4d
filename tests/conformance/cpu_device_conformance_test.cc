// The device conformance suite on the CPU device, and what only that device promises.
#include <memory>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "gtest/gtest.h"
#include "tests/conformance/device_conformance.h"

namespace baton {
namespace {

DeviceUnderTest Cpu(int threads) {
  return {"cpu_" + std::to_string(threads) + "_threads",
          [threads]() -> absl::StatusOr<std::unique_ptr<Device>> {
            return CpuDevice::Create({.threads = threads, .memory_bytes_max = 64 << 20});
          },
          1e-4};
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformance, ::testing::Values(Cpu(1), Cpu(2), Cpu(4)),
                         [](const auto& info) { return info.param.name; });

TEST(CpuDevice, BitsDoNotDependOnTheNumberOfThreads) {
  std::vector<float> expected;
  for (int threads = 1; threads <= 4; ++threads) {
    auto device = CpuDevice::Create({.threads = threads});
    ASSERT_TRUE(device.ok());
    CompiledTestModel c(**device, 16);
    const auto logits = c.Logits(RandomTokens(64, 13), 64, {0, 1, 2, 3});
    if (threads == 1) expected = logits;
    EXPECT_EQ(logits, expected) << threads;
  }
}

TEST(CpuDevice, RefusesImpossibleOptions) {
  EXPECT_EQ(CpuDevice::Create({.threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CpuDevice::Create({.threads = 100000}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CpuDevice::Create({.memory_bytes_max = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
