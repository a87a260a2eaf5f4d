// Checks that every Encode begins and goes on with. Thread-safe.
#ifndef BATON_ENGINE_TOKENIZER_ENCODE_CHECKS_H_
#define BATON_ENGINE_TOKENIZER_ENCODE_CHECKS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton {

inline constexpr size_t kEncodeBytesMax = size_t{64} << 20;

// ERRORS: InvalidArgument for a text beyond kEncodeBytesMax or that is not UTF-8 (with the offset).
absl::Status CheckText(absl::string_view text);
// ERRORS: InvalidArgument when `tokens` is more than `tokens_max`.
absl::Status CheckTokenCount(size_t tokens, size_t tokens_max);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_ENCODE_CHECKS_H_
