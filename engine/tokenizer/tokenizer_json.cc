#include "engine/tokenizer/tokenizer_json.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/encode_checks.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer_json_reader.h"

namespace baton {
namespace {

class JsonTokenizer : public Tokenizer {
 public:
  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    AddedTokenMatcher raw_tokens;         // looked for in the text as it is
    AddedTokenMatcher normalized_tokens;  // looked for in the normalized text
    BpeModel model;
  };
  JsonTokenizer(TokenTable table, Traits traits, Parts parts)
      : Tokenizer(std::move(table), std::move(traits)), parts_(std::move(parts)) {}

  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(TokenizerJson file,
                                                                 const TokenizerConfig& config);

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const override;

 private:
  // One call of Encode.
  struct Run {
    const EncodeOptions& options;
    size_t tokens_max;  // less what is put behind the text
    Matcher matcher;
    BpeScratch scratch;
    std::vector<absl::string_view> words;
    std::vector<int32_t> ids;
  };
  absl::Status EncodePlain(absl::string_view text, bool at_text_start, Run* run) const;
  absl::Status EncodeNormalized(absl::string_view text, bool at_text_start, Run* run) const;

  const Parts parts_;
};

absl::StatusOr<std::vector<int32_t>> JsonTokenizer::Encode(absl::string_view text,
                                                           const EncodeOptions& options) const {
  RETURN_IF_ERROR(CheckText(text));
  Run run{options, options.tokens_max, {}, {}, {}, {}};
  if (options.add_special_tokens) {
    RETURN_IF_ERROR(CheckTokenCount(prefix_ids().size() + suffix_ids().size(), options.tokens_max));
    run.tokens_max -= suffix_ids().size();
    run.ids.assign(prefix_ids().begin(), prefix_ids().end());
  }
  for (const auto& segment : parts_.raw_tokens.Split(text, options.parse_special)) {
    if (segment.id >= 0) {
      run.ids.push_back(segment.id);
      RETURN_IF_ERROR(CheckTokenCount(run.ids.size(), run.tokens_max));
      continue;
    }
    RETURN_IF_ERROR(EncodePlain(text.substr(segment.span.begin, segment.span.size()),
                                segment.span.begin == 0, &run));
  }
  if (options.add_special_tokens) {
    run.ids.insert(run.ids.end(), suffix_ids().begin(), suffix_ids().end());
  }
  return std::move(run.ids);
}

absl::Status JsonTokenizer::EncodePlain(absl::string_view text, bool at_text_start,
                                        Run* run) const {
  std::string normalized;
  if (!parts_.normalizer.empty()) {
    ASSIGN_OR_RETURN(normalized, parts_.normalizer.Apply(text, &run->matcher));
    text = normalized;
  }
  for (const auto& segment : parts_.normalized_tokens.Split(text, run->options.parse_special)) {
    if (segment.id >= 0) {
      run->ids.push_back(segment.id);
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size(), run->tokens_max));
      continue;
    }
    RETURN_IF_ERROR(EncodeNormalized(text.substr(segment.span.begin, segment.span.size()),
                                     at_text_start && segment.span.begin == 0, run));
  }
  return absl::OkStatus();
}

absl::Status JsonTokenizer::EncodeNormalized(absl::string_view text, bool at_text_start,
                                             Run* run) const {
  ASSIGN_OR_RETURN(const PreTokens tokens,
                   parts_.pre_tokenizer.Apply(std::string(text), at_text_start,
                                              parts_.model.takes_raw_bytes(), &run->matcher));
  const absl::string_view all = tokens.text;
  for (const TextSpan& span : tokens.words) {
    parts_.model.CutAtSpaces(all.substr(span.begin, span.size()), &run->words);
    for (const absl::string_view word : run->words) {
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size() + parts_.model.TokensAtLeast(word.size()),
                                      run->tokens_max));
      parts_.model.Encode(word, run->options.parse_special, &run->scratch, &run->ids);
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size(), run->tokens_max));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> FindNamedToken(const TokenizerJson& file,
                                                      const std::optional<std::string>& name,
                                                      absl::string_view key) {
  if (!name.has_value()) return std::optional<int32_t>();
  for (const AddedToken& token : file.added_tokens) {
    if (token.content == *name) return std::optional<int32_t>(token.id);
  }
  const auto it = file.model.vocab.find(*name);
  if (it != file.model.vocab.end()) return std::optional<int32_t>(it->second);
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer_config.json.", key, ": no token of tokenizer.json has this content"));
}

// The vocabulary and the added tokens, which may or may not be in the vocabulary too.
absl::StatusOr<TokenTable> BuildTable(const TokenizerJson& file) {
  std::vector<TokenTable::Entry> entries;
  entries.reserve(file.model.vocab.size() + file.added_tokens.size());
  absl::flat_hash_set<absl::string_view> added;
  for (const AddedToken& token : file.added_tokens) {
    entries.push_back({token.id, file.decoder.BytesOf(token.content), token.special});
    added.insert(token.content);
  }
  for (const auto& [token, id] : file.model.vocab) {
    if (!added.contains(token)) entries.push_back({id, file.decoder.BytesOf(token), false});
  }
  return TokenTable::Build(std::move(entries));
}

absl::StatusOr<AddedTokenMatcher> BuildMatcher(const TokenizerJson& file, bool normalized) {
  std::vector<AddedTokenMatcher::Pattern> patterns;
  Matcher matcher;
  for (const AddedToken& token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string text = token.content;
    if (normalized) {
      ASSIGN_OR_RETURN(text, file.normalizer.Apply(text, &matcher));
    }
    patterns.push_back({token, std::move(text)});
  }
  return AddedTokenMatcher::Build(std::move(patterns));
}

absl::Status CheckTemplateIds(const TokenTable& table, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (table.Has(id)) continue;
    return absl::InvalidArgumentError(absl::StrCat("post_processor: id ", id, " is not a token"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> JsonTokenizer::Create(
    TokenizerJson file, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(TokenTable table, BuildTable(file));
  RETURN_IF_ERROR(CheckTemplateIds(table, file.prefix_ids));
  RETURN_IF_ERROR(CheckTemplateIds(table, file.suffix_ids));
  Traits traits;
  traits.prefix_ids = file.prefix_ids;
  traits.suffix_ids = file.suffix_ids;
  ASSIGN_OR_RETURN(traits.bos_id, FindNamedToken(file, config.bos_token, "bos_token"));
  ASSIGN_OR_RETURN(traits.eos_id, FindNamedToken(file, config.eos_token, "eos_token"));
  if (!traits.bos_id.has_value() && !traits.prefix_ids.empty()) {
    traits.bos_id = traits.prefix_ids.front();
  }
  RETURN_IF_ERROR(
      ApplyAddFlags(config, traits.bos_id, traits.eos_id, &traits.prefix_ids, &traits.suffix_ids));
  traits.leading_space = file.decoder.leading_space();
  traits.invalid_utf8 = file.decoder.invalid_utf8();
  for (const AddedToken& token : file.added_tokens) {
    if (!token.special) continue;
    traits.special_tokens.insert({token.content, token.id});
    file.model.special_ids.insert(token.id);
  }
  Parts parts;
  ASSIGN_OR_RETURN(parts.raw_tokens, BuildMatcher(file, /*normalized=*/false));
  ASSIGN_OR_RETURN(parts.normalized_tokens, BuildMatcher(file, /*normalized=*/true));
  file.model.byte_level = file.pre_tokenizer.ends_in_byte_level();
  ASSIGN_OR_RETURN(parts.model, BpeModel::Build(file.model));
  parts.normalizer = std::move(file.normalizer);
  parts.pre_tokenizer = std::move(file.pre_tokenizer);
  return std::make_unique<const JsonTokenizer>(std::move(table), std::move(traits),
                                               std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> CreateJsonTokenizer(
    absl::string_view json, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(TokenizerJson file, ReadTokenizerJson(json));
  return JsonTokenizer::Create(std::move(file), config);
}

}  // namespace baton
