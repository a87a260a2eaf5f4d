// Valid files are read exactly; every malformed one is refused, naming the tensor (FIL-02, FIL-06,
// FIL-07). Method: files are built from a header and data, most differ from a valid one in one
// thing.
#include "engine/weights/safetensors.h"

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/weights/weights_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(absl::string_view bytes) {
  return SafetensorsFile::Parse(AsBytes(bytes), "some.safetensors");
}

// One entry of a header.
std::string Entry(absl::string_view name, absl::string_view dtype, absl::string_view shape,
                  absl::string_view offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

// A header of these entries.
template <typename... Entries>
std::string Header(const Entries&... entries) {
  return absl::StrCat("{", entries..., "}");
}

struct BadFile {
  const char* what;
  std::string header;
  size_t data_bytes;
  const char* message;  // part of the error
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void ExpectRefused(const BadFile& file) {
  const auto parsed = Parse(SafetensorsBytes(file.header, std::string(file.data_bytes, 'x')));
  EXPECT_EQ(parsed.status().code(), file.code) << file.what << ": " << parsed.status();
  EXPECT_THAT(parsed.status().message(), HasSubstr(file.message)) << file.what;
  EXPECT_THAT(parsed.status().message(), HasSubstr("some.safetensors")) << file.what;
}

TEST(Safetensors, ReadsNamesTypesShapesAndData) {
  const std::string header = absl::StrCat(
      R"({"__metadata__":{"format":"pt"},)", Entry("b", "F16", "[2,2]", "[4,12]"), ",",
      Entry("a", "F32", "[]", "[0,4]"), ",", Entry("empty", "I64", "[3,0]", "[12,12]"), "}");
  std::string data("\x00\x00\x80\x3f", 4);
  data += "abcdefgh";
  const std::string bytes = SafetensorsBytes(header, data);
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();

  ASSERT_EQ((*file)->tensors().size(), 3u);
  EXPECT_EQ((*file)->tensors()[0].name, "a");  // by offset
  const TensorInfo* a = (*file)->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, DType::kF32);
  EXPECT_TRUE(a->shape.empty());
  float one = 0;
  ASSERT_EQ(a->data.size(), sizeof(one));
  std::memcpy(&one, a->data.data(), sizeof(one));
  EXPECT_EQ(one, 1.0f);

  const TensorInfo* b = (*file)->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kF16);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(absl::string_view(reinterpret_cast<const char*>(b->data.data()), b->data.size()),
            "abcdefgh");

  const TensorInfo* empty = (*file)->Find("empty");
  ASSERT_NE(empty, nullptr);
  EXPECT_TRUE(empty->data.empty());
  EXPECT_EQ((*file)->Find("c"), nullptr);
  EXPECT_EQ((*file)->file_bytes(), bytes.size());
  EXPECT_EQ((*file)->header(), header);
}

TEST(Safetensors, KnowsTheSizeOfEveryType) {
  for (const DType dtype : kAllDTypes) {
    const int64_t bytes = DTypeBytes(dtype) * 3;
    const std::string header = absl::StrCat(
        "{", Entry("t", DTypeName(dtype), "[3]", absl::StrCat("[0,", bytes, "]")), "}");
    const std::string good = SafetensorsBytes(header, std::string(bytes, 'x'));
    const auto file = Parse(good);
    ASSERT_TRUE(file.ok()) << DTypeName(dtype) << ": " << file.status();
    EXPECT_EQ((*file)->tensors()[0].dtype, dtype);
    // One byte more or less than shape x type is noticed for each type.
    ExpectRefused({"size",
                   absl::StrReplaceAll(header, {{absl::StrCat(",", bytes, "]"),
                                                 absl::StrCat(",", bytes + 1, "]")}}),
                   static_cast<size_t>(bytes + 1), "tensor 't'"});
  }
}

TEST(Safetensors, AcceptsTrailingSpacesAndAnEmptyList) {
  EXPECT_TRUE(Parse(SafetensorsBytes("{}", "")).ok());
  EXPECT_TRUE(Parse(SafetensorsBytes("{}      ", "")).ok());
  EXPECT_TRUE(Parse(SafetensorsBytes(absl::StrCat("{}", std::string(10'000'000, ' ')), "")).ok());
  EXPECT_TRUE(Parse(SafetensorsBytes(R"({"__metadata__":{}})", "")).ok());
  EXPECT_TRUE(
      Parse(SafetensorsBytes(absl::StrCat(Header(Entry("t", "U8", "[2]", "[0,2]")), "   "), "xy"))
          .ok());
}

// FIL-06.
TEST(Safetensors, RefusesHeaderLengthsThatDoNotFit) {
  const std::string valid = SafetensorsBytes(Header(Entry("t", "U8", "[2]", "[0,2]")), "xy");
  ASSERT_TRUE(Parse(valid).ok());
  const uint64_t size = valid.size();
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}, size, size - 8 + 1,
        size - 7, kSafetensorsHeaderBytesMax, kSafetensorsHeaderBytesMax + 1}) {
    std::string bytes = valid;
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    const auto parsed = Parse(bytes);
    ASSERT_FALSE(parsed.ok()) << length;
    EXPECT_THAT(parsed.status().message(), HasSubstr("header")) << length;
    EXPECT_EQ(parsed.status().code(), length < 2 || length > kSafetensorsHeaderBytesMax
                                          ? absl::StatusCode::kInvalidArgument
                                          : absl::StatusCode::kFailedPrecondition)
        << length;
  }
}

TEST(Safetensors, RefusesFilesCutAtAnyByte) {
  const std::string valid = SafetensorsBytes(
      {{"a", {3}, DType::kF32}, {"b", {2, 2}, DType::kBF16}, {"c", {5}, DType::kU8}});
  ASSERT_TRUE(Parse(valid).ok());
  for (size_t size = 0; size < valid.size(); ++size) {
    const auto parsed = Parse(valid.substr(0, size));
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kFailedPrecondition)
        << size << ": " << parsed.status();
  }
}

// FIL-06.
TEST(Safetensors, RefusesHeadersThatAreNotTheFormat) {
  const std::string t = Entry("t", "U8", "[2]", "[0,2]");
  for (const BadFile& file : std::vector<BadFile>{
           {"no JSON", "{abc}", 0, "not valid JSON"},
           {"cut JSON", absl::StrCat("{", t), 2, "not valid JSON"},
           {"array", "[]", 0, "'{'"},
           {"string", "\"x\"", 0, "'{'"},
           {"leading space", " {}", 0, "'{'"},
           {"two documents", "{}{}", 0, "not valid JSON"},
           {"NUL padding", std::string("{}\0\0", 4), 0, "not valid JSON"},
           {"nesting", absl::StrCat("{\"t\":", std::string(100'000, '[')), 0, "tensor 't'"},
           {"nested objects",
            [] {
              std::string text;
              for (int i = 0; i < 100'000; ++i) text += "{\"t\":";
              return text;
            }(),
            0, "tensor 't'"},
           {"nested shape", Header(Entry("t", "U8", "[[2]]", "[0,2]")), 2, "tensor 't'"},
           {"invalid UTF-8", "{\"\xFF\xFE\":1}", 0, "not valid JSON"},
           {"surrogate", "{\"\xED\xA0\x80\":1}", 0, "not valid JSON"},
           {"duplicate tensor", Header(t, ",", t), 2, "tensor 't': occurs twice"},
           {"duplicate, spelled otherwise",
            Header(t, ",", absl::StrReplaceAll(t, {{"\"t\"", "\"\\u0074\""}})), 2,
            "tensor 't': occurs twice"},
           {"duplicate empty tensor",
            Header(Entry("e", "U8", "[0]", "[0,0]"), ",", Entry("e", "U8", "[0]", "[0,0]")), 0,
            "tensor 'e': occurs twice"},
           {"empty name", Header(Entry("", "U8", "[2]", "[0,2]")), 2, "name is empty"},
           {"long name", Header(Entry(std::string(5000, 'n'), "U8", "[2]", "[0,2]")), 2,
            "too long"},
           {"metadata number", R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
           {"metadata object", R"({"__metadata__":{"a":{}}})", 0, "__metadata__"},
           {"metadata null", R"({"__metadata__":{"a":null}})", 0, "__metadata__"},
           {"metadata list", R"({"__metadata__":[]})", 0, "__metadata__"},
           {"metadata string", R"({"__metadata__":"x"})", 0, "__metadata__"},
           {"metadata key twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "__metadata__"},
           {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__"},
           {"entry is a list", R"({"t":[]})", 0, "tensor 't'"},
           {"entry is null", R"({"t":null})", 0, "tensor 't'"},
           {"entry is empty", R"({"t":{}})", 0, "dtype is missing"}}) {
    ExpectRefused(file);
  }
}

// FIL-07.
TEST(Safetensors, RefusesTensorsThatDoNotAddUp) {
  const auto one = [](absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
    return Header(Entry("t", dtype, shape, offsets));
  };
  for (const BadFile& file : std::vector<BadFile>{
           {"begin after end", one("U8", "[2]", "[2,0]"), 2, "begin at 2 after their end 0"},
           {"begin after end by wrap", one("U8", "[2]", "[18446744073709551615,1]"), 2, "begin at"},
           {"past the file", one("U8", "[3]", "[0,3]"), 2, "truncated",
            absl::StatusCode::kFailedPrecondition},
           {"far past the file", one("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 2,
            "truncated", absl::StatusCode::kFailedPrecondition},
           {"size below shape", one("F32", "[2]", "[0,4]"), 4, "takes 8 bytes"},
           {"size above shape", one("F32", "[2]", "[0,12]"), 12, "takes 8 bytes"},
           {"product 2^64", one("F32", "[4294967296,4294967296]", "[0,0]"), 0, "addressed"},
           {"bytes 2^64", one("F32", "[4611686018427387904]", "[0,0]"), 0, "addressed"},
           {"bytes 2^64 + 4", one("F32", "[4611686018427387905]", "[0,4]"), 4, "addressed"},
           {"wraps, then 0", one("U8", "[8589934592,8589934592,0]", "[0,0]"), 0, "addressed"},
           {"dimension 2^63", one("U8", "[9223372036854775808]", "[0,0]"), 0, "too large"},
           {"dimension 2^64", one("U8", "[18446744073709551616]", "[0,0]"), 0, "fractional"},
           {"many dimensions", one("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1,
            "dimensions"},
           {"unknown dtype", one("Q9", "[2]", "[0,2]"), 2, "unknown dtype 'Q9'"},
           {"lower case dtype", one("f32", "[2]", "[0,8]"), 8, "unknown dtype 'f32'"},
           {"negative offset", one("U8", "[2]", "[-2,0]"), 2, "negative"},
           {"fractional offset", one("U8", "[2]", "[0,2.0]"), 2, "fractional"},
           {"exponent offset", one("U8", "[2]", "[0,2e0]"), 2, "fractional"},
           {"negative dimension", one("U8", "[-2]", "[0,2]"), 2, "negative"},
           {"fractional dimension", one("U8", "[2.5]", "[0,2]"), 2, "fractional"},
           {"one offset", one("U8", "[2]", "[0]"), 2, "not a pair"},
           {"no offsets", one("U8", "[2]", "[]"), 2, "not a pair"},
           {"three offsets", one("U8", "[2]", "[0,2,2]"), 2, "not a pair"},
           {"offsets no list", one("U8", "[2]", "2"), 2, "data_offsets"},
           {"shape no list", one("U8", "2", "[0,2]"), 2, "shape"},
           {"string in shape", one("U8", "[\"2\"]", "[0,2]"), 2, "shape"},
           {"dtype no string", R"({"t":{"dtype":1,"shape":[2],"data_offsets":[0,2]}})", 2, "dtype"},
           {"no shape", R"({"t":{"dtype":"U8","data_offsets":[0,2]}})", 2, "shape is missing"},
           {"no data_offsets", R"({"t":{"dtype":"U8","shape":[2]}})", 2, "data_offsets is missing"},
           {"field twice", R"({"t":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
            2, "dtype occurs twice"},
           {"unknown field",
            R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"strides":[1]}})", 2,
            "unknown field 'strides'"}}) {
    ExpectRefused(file);
    const auto parsed = Parse(SafetensorsBytes(file.header, std::string(file.data_bytes, 'x')));
    EXPECT_THAT(parsed.status().message(), HasSubstr("tensor 't'")) << file.what;
  }
}

// FIL-07, FIL-02.
TEST(Safetensors, RefusesHolesOverlapsAndTrailingBytes) {
  const std::string a = Entry("a", "U8", "[4]", "[0,4]");
  for (const BadFile& file : std::vector<BadFile>{
           {"hole at the start", Header(Entry("b", "U8", "[4]", "[4,8]")), 8,
            "tensor 'b': hole of 4 bytes"},
           {"hole between", Header(a, ",", Entry("b", "U8", "[4]", "[5,9]")), 9,
            "tensor 'b': hole of 1 bytes"},
           {"bytes after the last", Header(a), 5, "tensor 'a': 1 bytes follow"},
           {"data without a tensor", "{}", 1, "no tensor"},
           {"overlap", Header(a, ",", Entry("b", "U8", "[4]", "[3,7]")), 7,
            "tensor 'b': data at 3 overlaps"},
           {"the same range", Header(a, ",", Entry("b", "U8", "[4]", "[0,4]")), 4,
            "tensor 'b': data at 0 overlaps"},
           {"inside another", Header(a, ",", Entry("b", "U8", "[2]", "[1,3]")), 4,
            "tensor 'b': data at 1 overlaps"},
           {"empty tensor inside another", Header(a, ",", Entry("b", "U8", "[0]", "[2,2]")), 4,
            "tensor 'b': data at 2 overlaps"},
           {"empty tensor past the end", Header(a, ",", Entry("b", "U8", "[0]", "[9,9]")), 4,
            "tensor 'b'", absl::StatusCode::kFailedPrecondition}}) {
    ExpectRefused(file);
  }
}

TEST(Safetensors, ReportsWhatIsNoReadableFile) {
  const TempFolder folder;
  for (const std::string& path : {folder / "absent.safetensors", folder.path(),
                                  std::string("/dev/null"), std::string("/dev/zero")}) {
    const auto opened = SafetensorsFile::Open(path);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << path;
    EXPECT_THAT(opened.status().message(), HasSubstr(path));
  }
  folder.Write("empty.safetensors", "");
  EXPECT_EQ(SafetensorsFile::Open(folder / "empty.safetensors").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Safetensors, OpenedFileKeepsItsBytesWhenTheNameIsGone) {
  const TempFolder folder;
  folder.Write("m.safetensors", SafetensorsBytes({{"t", {4096}, DType::kU8, 'q'}}));
  const auto file = SafetensorsFile::Open(folder / "m.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  folder.Remove("m.safetensors");
  EXPECT_EQ((*file)->tensors()[0].data.back(), std::byte{'q'});
}

// FIL-06: "rejection before allocating > 128 MiB". The child may take 64 MiB more than it has.
constexpr uint64_t kMemoryMax = uint64_t{64} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
#else
constexpr bool kIsSanitized = false;
#endif

uint64_t DataBytesOfProcess() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    if (absl::StartsWith(line, "VmData:") &&
        absl::SimpleAtoi(absl::StrReplaceAll(line.substr(7), {{"kB", ""}, {"\t", ""}, {" ", ""}}),
                         &kib)) {
      return kib << 10;
    }
  }
  return 0;
}

// Ends the process: 0 when the file is refused for a reason of its own, not for lack of memory.
[[noreturn]] void ParseWithLittleMemory(const std::string& bytes) {
  if (!kIsSanitized) {  // sanitizers keep freed memory, so a limit would say nothing
    const uint64_t limit = DataBytesOfProcess() + kMemoryMax;
    const rlimit data = {limit, limit};
    if (setrlimit(RLIMIT_DATA, &data) != 0) std::_Exit(2);
    if (std::malloc(2 * kMemoryMax) != nullptr) std::_Exit(3);  // the limit does not work
  }
  const auto parsed = Parse(bytes);
  const bool refused = !parsed.ok() && !absl::StrContains(parsed.status().message(), "alloc");
  std::_Exit(refused ? 0 : 1);
}

TEST(SafetensorsDeathTest, HugeHostileHeadersTakeLittleMemory) {
  for (const auto& [start, unit] : std::vector<std::pair<std::string, std::string>>{
           {"{\"", "a"},                    // one name
           {"{\"t\":{\"shape\":[", "1"},    // one number
           {"{\"t\":{\"shape\":[1", ",1"},  // many dimensions
           {"{\"__metadata__\":{\"a\":\"b\"", ",\"\":\"\""}}) {
    std::string bytes;
    bytes.reserve(kSafetensorsHeaderBytesMax + 8);
    bytes = SafetensorsBytes(start, "");
    while (bytes.size() + unit.size() <= kSafetensorsHeaderBytesMax + 8) bytes.append(unit);
    const uint64_t header_bytes = bytes.size() - 8;
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header_bytes >> (8 * i));
    EXPECT_EXIT(ParseWithLittleMemory(bytes), ::testing::ExitedWithCode(0), "") << start << unit;
  }
}

}  // namespace
}  // namespace baton
