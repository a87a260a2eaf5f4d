#include "engine/tokenizer/tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace baton {

Tokenizer::Tokenizer(TokenTable table, Traits traits)
    : table_(std::move(table)), traits_(std::move(traits)) {}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Create(const TokenizerFiles& files) {
  ASSIGN_OR_RETURN(const TokenizerConfig config,
                   TokenizerConfig::Parse(files.tokenizer_config_json));
  if (!files.tokenizer_json.empty()) return CreateJsonTokenizer(files.tokenizer_json, config);
  if (!files.tokenizer_model.empty()) {
    return CreateSentencePieceTokenizer(files.tokenizer_model, config);
  }
  return absl::InvalidArgumentError("neither a tokenizer.json nor a tokenizer.model");
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, const DecodeOptions& options) const {
  IncrementalDetokenizer detokenizer(this, options);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Push(id);
  text += detokenizer.Finish();
  return text;
}

std::optional<int32_t> Tokenizer::SpecialTokenId(absl::string_view content) const {
  const auto it = traits_.special_tokens.find(content);
  if (it == traits_.special_tokens.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::adds_bos() const {
  return traits_.bos_id.has_value() && !traits_.prefix_ids.empty() &&
         traits_.prefix_ids.front() == *traits_.bos_id;
}

}  // namespace baton
