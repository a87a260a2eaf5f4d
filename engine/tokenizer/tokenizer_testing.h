// Helpers of this folder's tests.
#ifndef BATON_ENGINE_TOKENIZER_TOKENIZER_TESTING_H_
#define BATON_ENGINE_TOKENIZER_TOKENIZER_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton::testing {

// Tests run in the repository's root. The folder of shared test data is $BATON_SHARED_DATA, by
// default ../shared/data.
std::string SharedDataPath(absl::string_view relative);
// Empty when the file is not there.
std::string ReadFileOrEmpty(const std::string& path);

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeJsonTokenizer(std::string json,
                                                                   std::string config = "");
// The repository's own tokenizer: 4,096 byte-level tokens, four control tokens (ids 0 to 3), BOS.
std::unique_ptr<const Tokenizer> ProseTokenizer();

// No special tokens added; fails the test on an error.
std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, absl::string_view text);
std::vector<int32_t> IdsOf(const JsonValue& array);
// The member of an object; fails the test and gives null when absent.
const JsonValue& Member(const JsonValue& object, absl::string_view key);
const std::string& Text(const JsonValue& object, absl::string_view key);
// CPU time of this thread so far. Limits on time are checked on it, so that a busy machine does not
// fail a test.
double ThreadCpuSeconds();
// What a limit of one second means in this build: sanitizers and unoptimised code are slower.
#ifdef NDEBUG
inline constexpr double kOneSecond = 1.0;
#else
inline constexpr double kOneSecond = 30.0;
#endif
std::string JsonQuote(absl::string_view text);

// A tokenizer.json with NFC, Qwen2's split pattern and the vocabulary of a .tiktoken file; the
// merges are found by asking which two parts each token is joined from last.
std::string Qwen2JsonFromTiktoken(absl::string_view tiktoken);

}  // namespace baton::testing

#endif  // BATON_ENGINE_TOKENIZER_TOKENIZER_TESTING_H_
