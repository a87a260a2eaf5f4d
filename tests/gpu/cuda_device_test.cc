// The device conformance suite on the CUDA device in its deterministic mode, and what the plug-in
// answers on any machine.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/device_conformance.h"
#include "tests/gpu/gpu_testing.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

DeviceUnderTest Cuda() {
  DeviceUnderTest device{.name = "cuda_deterministic", .create = nullptr, .tolerance = 3e-2};
  if (HasCudaDevice()) {
    device.create = []() -> absl::StatusOr<std::unique_ptr<Device>> {
      return MakeCudaDevice({.deterministic = true, .cache_directory = ""});
    };
  }
  return device;
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeviceConformance, ::testing::Values(Cuda()),
                         [](const auto& info) { return info.param.name; });

TEST(CudaPluginTest, LoadsWithOrWithoutAGpu) {
  const auto plugin = CudaPlugin();
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_STREQ((*plugin)->abi_id, DevicePluginAbiId());
}

TEST(CudaPluginTest, SaysThatThereIsNoGpu) {
  if (HasCudaDevice()) GTEST_SKIP() << "there is a GPU";
  const auto device = (*CudaPlugin())->create({});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("looking for GPUs"));
}

TEST(CudaPluginTest, RefusesAGpuThatIsNotThere) {
  SKIP_WITHOUT_CUDA_DEVICE();
  PluginDeviceOptions options;
  options.ordinal = 99;
  const auto device = (*CudaPlugin())->create(options);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("no GPU 99"));
}

TEST(CudaDeviceTest, TheDefaultModeComputesTheSameUpToRounding) {
  SKIP_WITHOUT_CUDA_DEVICE();
  auto device = MakeCudaDevice();
  CompiledTestModel c(*device, 16);
  const auto tokens = RandomTokens(50, 3);
  const auto expected = c.model().ReferenceLogits(tokens);
  for (const size_t chunk : {size_t{50}, size_t{1}, size_t{7}}) {
    const auto actual = c.Logits(tokens, chunk, {3, 0, 7, 1});
    const size_t cols = expected[0].size();
    ASSERT_EQ(actual.size(), tokens.size() * cols);
    for (size_t t = 0; t < tokens.size(); ++t) {
      double largest = 0;
      for (const double v : expected[t]) largest = std::max(largest, std::abs(v));
      for (size_t i = 0; i < cols; ++i) {
        EXPECT_NEAR(actual[t * cols + i], expected[t][i], 3e-2 * largest) << chunk << ", " << t;
      }
    }
  }
}

// One more token behind a prompt of 20.
const std::vector<TestSequence> kStepAfterPrompt = {
    {.start_position = 20, .token_source = {5}, .block_table = {0, 1, 2}, .sample_rows = {0}}};

TEST(CudaDeviceTest, GraphsGiveWhatSingleLaunchesGive) {
  SKIP_WITHOUT_CUDA_DEVICE();
  auto device = MakeCudaDevice();
  CompiledTestModel c(*device, 16);
  c.Logits(RandomTokens(20, 4), 20, {0, 1, 2});
  // The same step again and again: launched, captured, replayed.
  const auto first = c.Run(kStepAfterPrompt).logits;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(c.Run(kStepAfterPrompt).logits, first) << i;
  const ProgramStats stats = c.program().stats();
  EXPECT_EQ(stats.graphs, 1u);
  EXPECT_EQ(stats.graph_launches, 5u);
}

TEST(CudaDeviceTest, NoGraphIsCapturedWhileACommunicatorChanges) {
  SKIP_WITHOUT_CUDA_DEVICE();
  auto device = MakeCudaDevice();
  CompiledTestModel c(*device, 16);
  c.Logits(RandomTokens(20, 4), 20, {0, 1, 2});
  const auto first = c.Run(kStepAfterPrompt).logits;
  ASSERT_NE(device->capture_gate(), nullptr);
  ASSERT_TRUE(device->capture_gate()->BeginCommunicatorChange(std::chrono::seconds(1)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.Run(kStepAfterPrompt).logits, first) << i;
  EXPECT_EQ(c.program().stats().graphs, 0u);
  device->capture_gate()->EndCommunicatorChange();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.Run(kStepAfterPrompt).logits, first) << i;
  EXPECT_EQ(c.program().stats().graphs, 1u);
  EXPECT_EQ(c.program().stats().graph_launches, 3u);
}

}  // namespace
}  // namespace baton
