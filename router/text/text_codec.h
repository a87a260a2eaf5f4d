// Text and tokens of one model, as the router needs them. The real one (tokenizer_codec.h) is made
// from a worker's tokenizer files; tests of the router bring their own.
#ifndef BATON_ROUTER_TEXT_TEXT_CODEC_H_
#define BATON_ROUTER_TEXT_TEXT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::router {

struct TextEncodeOptions {
  bool parse_special = false;
  // Unset: the model's own setting.
  std::optional<bool> add_special_tokens;
};

// Generated tokens to text, piece by piece. Every piece is valid UTF-8. Owned by one request.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  virtual std::string Push(int32_t id) = 0;
  virtual std::string Finish() = 0;
};

// Immutable, thread-safe.
class TextCodec : public std::enable_shared_from_this<TextCodec> {
 public:
  virtual ~TextCodec() = default;

  // May take long for long texts: never called on gRPC threads or the core's loop.
  // ERRORS: InvalidArgument: the text cannot be encoded.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8,
                                                      const TextEncodeOptions& options) const = 0;
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const = 0;
  virtual std::string TokenBytes(int32_t id) const = 0;
  // No token stands for more bytes of text than this; at least 1.
  virtual size_t longest_token_bytes() const = 0;
  // Tokens that go round a text on encoding, at most.
  virtual size_t special_tokens_max() const = 0;
  // For tokens that follow a prompt, control tokens left out. Keeps the codec alive.
  virtual std::unique_ptr<TextDecoder> NewDecoder() const = 0;
};

// Bytes of a model's tokenizer files; empty when there is none.
struct TokenizerArtifacts {
  std::string tokenizer_json;
  std::string tokenizer_model;
  std::string tokenizer_config;
};

using TextCodecFactory =
    std::function<absl::StatusOr<std::shared_ptr<const TextCodec>>(const TokenizerArtifacts&)>;

}  // namespace baton::router

#endif  // BATON_ROUTER_TEXT_TEXT_CODEC_H_
