// The invalid side of loading plug-ins; the valid one is tests/gpu.
#include "device/device_plugin.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(LoadDevicePlugin, NamesTheFoldersOfAMissingFile) {
  const auto plugin = LoadDevicePlugin("libbaton_none.so");
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(plugin.status().message()), HasSubstr("libbaton_none.so"));
}

TEST(LoadDevicePlugin, RefusesWhatIsNoSharedObject) {
  const auto plugin = LoadDevicePluginAt("CMakeLists.txt");
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(LoadDevicePlugin, RefusesASharedObjectWithoutTheEntry) {
  // Any library that is loaded anyway.
  const auto plugin = LoadDevicePluginAt("libm.so.6");
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plugin.status().message()), HasSubstr(kDevicePluginEntry));
}

}  // namespace
}  // namespace baton
