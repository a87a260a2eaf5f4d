#include "worker/worker_options.h"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

TEST(ParseModelSpec, TakesTheNameOrTheLastPartOfThePath) {
  EXPECT_EQ(ParseModelSpec("a=/x/y")->name, "a");
  EXPECT_EQ(ParseModelSpec("a=/x/y")->path, "/x/y");
  EXPECT_EQ(ParseModelSpec("models/stories260K/")->name, "stories260K");
  EXPECT_EQ(ParseModelSpec("org/llama:v1=/x=y")->path, "/x=y");
}

TEST(ParseModelSpec, NamesWhatIsWrong) {
  for (const char* bad : {"", "=", "a=", "=/x", "a b=/x", "/", "m\n=/x"}) {
    EXPECT_EQ(ParseModelSpec(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(ParseModelSpec(std::string(200, 'a') + "=/x").ok());
}

TEST(MintInstanceId, IsNewEachTime) { EXPECT_NE(MintInstanceId(), MintInstanceId()); }

}  // namespace
}  // namespace baton::worker
