#include "engine/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/oniguruma_pattern.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr size_t kPatternBytesMax = size_t{64} << 10;
// A run of a million spaces costs about a million steps in the usual patterns.
constexpr uint32_t kMatchStepsMax = 100'000'000;
constexpr uint32_t kHeapKibMax = 64 << 10;
constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMax = size_t{8} << 20;

struct ContextDeleter {
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, ContextDeleter>;

std::string Pcre2Message(int code) {
  PCRE2_UCHAR buffer[128];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0)
    return absl::StrCat("error ", code);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Matcher::State {
  Owned<pcre2_match_data> data;
  Owned<pcre2_match_context> context;
  Owned<pcre2_jit_stack> jit_stack;  // only once the 32 KiB of the machine stack were too small
};

Matcher::Matcher() : state_(std::make_unique<State>()) {}
Matcher::~Matcher() = default;

struct SplitPattern::Code {
  Owned<pcre2_code> code;
};

SplitPattern::SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

absl::StatusOr<SplitPattern> SplitPattern::Literal(absl::string_view literal) {
  if (literal.empty()) return absl::InvalidArgumentError("split pattern: an empty string");
  if (literal.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError("split pattern: longer than 64 KiB");
  }
  SplitPattern pattern;
  pattern.literal_ = std::string(literal);
  return pattern;
}

absl::StatusOr<SplitPattern> SplitPattern::Compile(absl::string_view oniguruma_pattern) {
  if (oniguruma_pattern.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError("split pattern: longer than 64 KiB");
  }
  ASSIGN_OR_RETURN(const std::string translated, TranslateOnigurumaPattern(oniguruma_pattern));
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return absl::ResourceExhaustedError("split pattern: out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  Owned<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C, &error,
                    &error_offset, context.get()));
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("split pattern does not compile: ", Pcre2Message(error)));
  }
  // Without JIT (not built in, or memory cannot be made executable) the interpreter does the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  SplitPattern pattern;
  pattern.code_ = std::make_unique<Code>(Code{std::move(code)});
  return pattern;
}

absl::Status SplitPattern::FindAll(absl::string_view text, Matcher* matcher,
                                   std::vector<TextSpan>* out) const {
  if (code_ == nullptr) {
    for (size_t at = text.find(literal_); at != absl::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      out->push_back({at, at + literal_.size()});
    }
    return absl::OkStatus();
  }
  Matcher::State& state = *matcher->state_;
  if (state.data == nullptr) {
    state.data.reset(pcre2_match_data_create(1, nullptr));
    state.context.reset(pcre2_match_context_create(nullptr));
    if (state.data == nullptr || state.context == nullptr) {
      return absl::ResourceExhaustedError("split pattern: out of memory");
    }
    pcre2_set_match_limit(state.context.get(), kMatchStepsMax);
    pcre2_set_heap_limit(state.context.get(), kHeapKibMax);
  }
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t start = 0;
  size_t last_match_end = absl::string_view::npos;
  while (start <= text.size()) {
    const int rc = pcre2_match(code_->code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                               state.data.get(), state.context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && state.jit_stack == nullptr) {
      state.jit_stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
      if (state.jit_stack == nullptr) {
        return absl::ResourceExhaustedError("split pattern: out of memory");
      }
      pcre2_jit_stack_assign(state.context.get(), nullptr, state.jit_stack.get());
      continue;
    }
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the text is too hard for the model's split pattern: ", Pcre2Message(rc)));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data.get());
    const TextSpan match{offsets[0], offsets[1]};
    if (match.size() == 0 && match.begin == last_match_end) {
      // Oniguruma's iteration: an empty match is not taken right behind a match.
      if (start >= text.size()) break;
      start += unicode::DecodeFront(text.substr(start)).bytes;
      continue;
    }
    out->push_back(match);
    start = match.end;
    last_match_end = match.end;
  }
  return absl::OkStatus();
}

}  // namespace baton
