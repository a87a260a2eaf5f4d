#include "router/text/tokenizer_codec.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton::router {
namespace {

class TokenizerDecoder final : public TextDecoder {
 public:
  TokenizerDecoder(std::shared_ptr<const TextCodec> owner, const Tokenizer* tokenizer)
      : owner_(std::move(owner)),
        detokenizer_(tokenizer, {.skip_special = true, .follows_prompt = true}) {}

  std::string Push(int32_t id) override { return detokenizer_.Push(id); }
  std::string Finish() override { return detokenizer_.Finish(); }

 private:
  const std::shared_ptr<const TextCodec> owner_;
  IncrementalDetokenizer detokenizer_;
};

class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(std::unique_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      longest_token_bytes_ = std::max(longest_token_bytes_, tokenizer_->TokenBytesView(id).size());
    }
  }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8,
                                              const TextEncodeOptions& options) const override {
    return tokenizer_->Encode(utf8,
                              {.add_special_tokens = options.add_special_tokens.value_or(true),
                               .parse_special = options.parse_special});
  }
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const override {
    return tokenizer_->Decode(ids, {.skip_special = skip_special});
  }
  std::string TokenBytes(int32_t id) const override { return tokenizer_->TokenBytes(id); }
  size_t longest_token_bytes() const override { return longest_token_bytes_; }
  size_t special_tokens_max() const override {
    return tokenizer_->prefix_ids().size() + tokenizer_->suffix_ids().size();
  }
  std::unique_ptr<TextDecoder> NewDecoder() const override {
    return std::make_unique<TokenizerDecoder>(shared_from_this(), tokenizer_.get());
  }

 private:
  const std::unique_ptr<const Tokenizer> tokenizer_;
  size_t longest_token_bytes_ = 1;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TextCodec>> MakeTokenizerCodec(
    const TokenizerArtifacts& artifacts) {
  ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                   Tokenizer::Create({.tokenizer_json = artifacts.tokenizer_json,
                                      .tokenizer_model = artifacts.tokenizer_model,
                                      .tokenizer_config_json = artifacts.tokenizer_config}));
  return std::shared_ptr<const TextCodec>(
      std::make_shared<const TokenizerCodec>(std::move(tokenizer)));
}

}  // namespace baton::router
