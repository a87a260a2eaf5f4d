#include "device/cuda/matmul/matmul_plan_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/hash/hash.h"
#include "absl/strings/str_replace.h"

namespace baton::cuda {
namespace {

MatmulKey Key(int32_t rows) {
  return {
      .rows = rows, .n = 6144, .k = 4096, .bias = true, .num_sms = 132, .library_version = 130001};
}
MatmulChoice Choice(uint64_t seed) {
  MatmulChoice choice = {.workspace_bytes = 1 << 20, .us = 12.5};
  for (uint64_t& word : choice.algorithm) word = seed = seed * 0x9E3779B97F4A7C15ull + 1;
  return choice;
}
std::string TestPath(const char* name) { return ::testing::TempDir() + name; }

TEST(MatmulPlanCache, KeysDifferInEveryField) {
  MatmulKey other[] = {Key(1), Key(1), Key(1), Key(1), Key(1), Key(1), Key(1), Key(1), Key(1)};
  other[0].rows = 2;
  other[1].n = 1;
  other[2].k = 8;
  other[3].bf16 = false;
  other[4].out_f32 = true;
  other[5].bias = false;
  other[6].deterministic = true;
  other[7].num_sms = 114;
  other[8].library_version = 130002;
  for (const MatmulKey& key : other) {
    EXPECT_FALSE(key == Key(1));
    EXPECT_NE(absl::HashOf(key), absl::HashOf(Key(1)));
  }
  EXPECT_EQ(absl::HashOf(Key(1)), absl::HashOf(Key(1)));
}

TEST(MatmulPlanCache, ReadsWhatItWrote) {
  MatmulPlanCache cache;
  cache.Put(Key(64), Choice(1));
  cache.Put(Key(256), Choice(2));
  MatmulKey plain = Key(256);
  plain.bias = false;
  plain.bf16 = false;
  plain.out_f32 = true;
  plain.deterministic = true;
  cache.Put(plain, Choice(3));
  MatmulPlanCache read;
  EXPECT_EQ(read.Parse(cache.Serialise()), 0);
  EXPECT_EQ(read.size(), 3u);
  for (const MatmulKey& key : {Key(64), Key(256), plain}) {
    ASSERT_NE(read.Find(key), nullptr);
    EXPECT_EQ(*read.Find(key), *cache.Find(key));
  }
  EXPECT_EQ(read.Find(Key(65)), nullptr);
  EXPECT_EQ(read.Serialise(), cache.Serialise());
}

TEST(MatmulPlanCache, KeepsUnmeasuredChoicesOutOfTheFile) {
  MatmulPlanCache cache;
  MatmulChoice choice = Choice(1);
  choice.us = 0;
  cache.Put(Key(64), choice);
  EXPECT_EQ(cache.Serialise(), "");
}

TEST(MatmulPlanCache, SkipsDamagedAndForeignLines) {
  MatmulPlanCache cache;
  cache.Put(Key(64), Choice(1));
  cache.Put(Key(256), Choice(2));
  const std::string text = cache.Serialise();
  const std::string damaged = absl::StrReplaceAll(text, {{"\"rows\": 64", "\"rows\": 65"}});
  MatmulPlanCache read;
  EXPECT_EQ(read.Parse(damaged), 1);
  EXPECT_EQ(read.size(), 1u);
  EXPECT_NE(read.Find(Key(256)), nullptr);
  MatmulPlanCache foreign;
  EXPECT_EQ(foreign.Parse("{\"a\": 1}\nELF\x7f\n[]\n\n"), 3);
  EXPECT_EQ(foreign.size(), 0u);
}

TEST(MatmulPlanCache, SurvivesEveryTruncation) {
  MatmulPlanCache cache;
  cache.Put(Key(64), Choice(1));
  const std::string text = cache.Serialise();
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    MatmulPlanCache read;
    read.Parse(text.substr(0, length));
    EXPECT_EQ(read.size(), 0u) << length;
  }
}

TEST(MatmulPlanCache, ReplacesItsFileInOneStep) {
  const std::string path = TestPath("matmul_plan_cache_test.jsonl");
  std::filesystem::remove(path);
  MatmulPlanCache cache;
  EXPECT_EQ(cache.ReadFile(path).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(cache.WriteFile(path).ok());
  EXPECT_EQ(cache.ReadFile(path).value(), 0);
  cache.Put(Key(64), Choice(1));
  ASSERT_TRUE(cache.WriteFile(path).ok());
  MatmulPlanCache read;
  EXPECT_EQ(read.ReadFile(path).value(), 0);
  EXPECT_EQ(read.size(), 1u);
  std::filesystem::remove(path);
  EXPECT_EQ(cache.WriteFile("/nonexistent/folder/file").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::cuda
