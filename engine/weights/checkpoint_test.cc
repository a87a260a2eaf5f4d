// Directories: one file, shards with an index, and everything an interrupted or hostile download
// may leave behind (FIL-09).
#include "engine/weights/checkpoint.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/weights/weights_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kIndex[] = "model.safetensors.index.json";

std::string Shard(int i) { return absl::StrCat("model-0000", i, "-of-00003.safetensors"); }

// Three shards of two tensors each: "a1", "a2", "b1", ...
class ShardedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string map;
    for (int i = 1; i <= 3; ++i) {
      const std::string letter(1, static_cast<char>('a' + i - 1));
      folder_.Write(Shard(i), SafetensorsBytes({{letter + "1", {4, 2}, DType::kF32, letter[0]},
                                                {letter + "2", {3}, DType::kBF16, letter[0]}}));
      for (const char* number : {"1", "2"}) {
        absl::StrAppend(&map, map.empty() ? "" : ",", "\"", letter, number, "\":\"", Shard(i),
                        "\"");
      }
    }
    index_ = absl::StrCat(R"({"metadata":{"total_size":1},"weight_map":{)", map, "}}");
    folder_.Write(kIndex, index_);
  }

  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() { return Checkpoint::Open(folder_.path()); }

  void ExpectPrecondition(absl::string_view file, absl::string_view also = "") {
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(std::string(file)), HasSubstr(std::string(also))));
  }

  void ReplaceInIndex(const std::string& from, const std::string& to) {
    const std::string changed = absl::StrReplaceAll(index_, {{from, to}});
    ASSERT_NE(changed, index_);
    folder_.Write(kIndex, changed);
  }

  TempFolder folder_;
  std::string index_;
};

TEST_F(ShardedCheckpoint, OpensEveryTensorOfEveryShard) {
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->files().size(), 3u);
  EXPECT_EQ((*checkpoint)->tensors().size(), 6u);
  EXPECT_EQ((*checkpoint)->total_bytes(), 3u * (32 + 6));
  for (const char* name : {"a1", "a2", "b1", "b2", "c1", "c2"}) {
    const TensorInfo* tensor = (*checkpoint)->Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->data.front(), static_cast<std::byte>(name[0]));
  }
  EXPECT_EQ((*checkpoint)->Find("a3"), nullptr);
}

TEST_F(ShardedCheckpoint, NamesAMissingShard) {
  folder_.Remove(Shard(2));
  ExpectPrecondition(Shard(2), "no such file");
}

TEST_F(ShardedCheckpoint, NamesAShortenedShard) {
  const std::string whole = folder_.Read(Shard(3));
  for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{4}, size_t{0}}) {
    folder_.Write(Shard(3), whole.substr(0, size));
    ExpectPrecondition(Shard(3));
  }
}

TEST_F(ShardedCheckpoint, RefusesShardsOutsideTheDirectory) {
  const TempFolder other;
  other.Write("x.safetensors", SafetensorsBytes({{"a1", {1}}}));
  for (const std::string& name :
       {std::string("../x.safetensors"), other / "x.safetensors", std::string("./x.safetensors"),
        std::string("sub/x.safetensors"), std::string(".."), std::string(""),
        std::string("x\\u0000.safetensors"), std::string("..\\\\x.safetensors"),
        std::string("config.json")}) {
    ReplaceInIndex(Shard(1), name);
    ExpectPrecondition(kIndex, "tensor 'a1'");
  }
}

TEST_F(ShardedCheckpoint, RefusesATensorMappedToTheWrongShard) {
  ReplaceInIndex(absl::StrCat("\"a1\":\"", Shard(1)), absl::StrCat("\"a1\":\"", Shard(2)));
  // Shards are read in order of their names: the first one now holds a tensor too many.
  ExpectPrecondition(Shard(1), "tensor 'a1'");
}

TEST_F(ShardedCheckpoint, RefusesATensorThatNoShardHolds) {
  ReplaceInIndex("\"c1\":", "\"c9\":");
  ExpectPrecondition(Shard(3), "tensor 'c9'");
}

TEST_F(ShardedCheckpoint, DoesNotReadAShardThatTheIndexLeavesOut) {
  folder_.Write("model-00004-of-00004.safetensors", "not even a header");
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->files().size(), 3u);
}

TEST_F(ShardedCheckpoint, RefusesShardsWithoutAnIndex) {
  folder_.Remove(kIndex);
  ExpectPrecondition(kIndex, "no such file");
}

TEST_F(ShardedCheckpoint, PrefersOneWholeFileToTheIndex) {
  folder_.Write("model.safetensors", SafetensorsBytes({{"only", {1}}}));
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE((*checkpoint)->Find("only"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("a1"), nullptr);
}

TEST_F(ShardedCheckpoint, FollowsLinksAsHubCachesUseThem) {
  const TempFolder snapshot;
  for (int i = 1; i <= 3; ++i) {
    std::filesystem::create_symlink(folder_ / Shard(i), snapshot / Shard(i));
  }
  std::filesystem::create_symlink(folder_ / kIndex, snapshot / kIndex);
  const auto checkpoint = Checkpoint::Open(snapshot.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tensors().size(), 6u);
}

TEST_F(ShardedCheckpoint, RefusesAMalformedIndex) {
  const std::string entry = absl::StrCat("\"a1\":\"", Shard(1), "\"");
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string(R"({"weight_map":{}})"),
        std::string(R"({"weight_map":[]})"), std::string(R"({"weight_map":{"a1":1}})"),
        std::string(R"({"weight_map":{"a1":null}})"), index_.substr(0, index_.size() / 2),
        absl::StrReplaceAll(index_, {{entry, absl::StrCat(entry, ",", entry)}})}) {
    folder_.Write(kIndex, text);
    const absl::Status status = Open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(kIndex)) << text;
  }
}

TEST(Checkpoint, RefusesADirectoryWithoutWeightsAndAPathThatIsNotThere) {
  const TempFolder folder;
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Checkpoint::Open(folder / "absent").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Checkpoint, RevisionFollowsConfigHeadersAndData) {
  const TempFolder folder;
  const auto revision = [&] {
    const auto checkpoint = Checkpoint::Open(folder.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? (*checkpoint)->revision() : "";
  };
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", SafetensorsBytes({{"t", {1000}, DType::kF32, 'a'}}));
  std::vector<std::string> seen = {revision()};
  EXPECT_EQ(seen[0].size(), 64u);
  EXPECT_EQ(revision(), seen[0]);

  folder.Write("model.safetensors", SafetensorsBytes({{"t", {1000}, DType::kF32, 'b'}}));
  seen.push_back(revision());  // same header, same size, other weights
  folder.Write("model.safetensors", SafetensorsBytes({{"u", {1000}, DType::kF32, 'b'}}));
  seen.push_back(revision());
  folder.Write("config.json", "{ }");
  seen.push_back(revision());
  folder.Write("generation_config.json", "{}");
  seen.push_back(revision());
  folder.Remove("config.json");
  seen.push_back(revision());
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(seen[i], seen[j]) << i << " " << j;
  }
}

TEST(Checkpoint, RevisionDoesNotDependOnWhereTheDirectoryIs) {
  const TempFolder one;
  const TempFolder two;
  std::string revisions[2];
  for (const TempFolder* folder : {&one, &two}) {
    folder->Write("model.safetensors", SafetensorsBytes({{"t", {3}}}));
    const auto checkpoint = Checkpoint::Open(folder->path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    revisions[folder == &two] = (*checkpoint)->revision();
  }
  EXPECT_EQ(revisions[0], revisions[1]);
}

// Files of other writers (huggingface/swift-transformers, vectorch-ai/ScaleLLM; Apache-2.0).
TEST(Checkpoint, OpensFilesOfOtherWriters) {
  const char* shared = std::getenv("BATON_SHARED_DATA");
  const std::string folder =
      absl::StrCat(shared != nullptr ? shared : "../shared/data", "/weights/safetensors-tiny");
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << folder << " is not there (BATON_SHARED_DATA names the folder of shared data)";
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto checkpoint = Checkpoint::Open(entry.path().string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    ++files;
  }
  EXPECT_GE(files, 6);
}

}  // namespace
}  // namespace baton
