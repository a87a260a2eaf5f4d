#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_merge.h"
#include "engine/tokenizer/encode_checks.h"
#include "engine/tokenizer/sentencepiece_reader.h"
#include "engine/tokenizer/space_mark.h"
#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

using Piece = SentencePieceModel::Piece;
using Type = SentencePieceModel::Type;

constexpr size_t kMergesMax = 8'000'000;

// Symbols of pieces, and of characters that only occur inside pieces (ids from the number of pieces
// up): SentencePiece merges those too.
struct PieceMerges {
  absl::flat_hash_map<char32_t, int32_t> id_of_char;
  MergeTable merges;
  bool cuts_at_spaces = false;
};

bool CanBeMerged(const Piece& piece) {
  return piece.type == Type::kNormal || piece.type == Type::kUserDefined;
}

// SentencePiece joins two neighbours when their joint text is a piece, best score first. Every way
// to cut a piece in two is therefore a rule, ranked by the score of the piece; equal scores share a
// rank.
absl::StatusOr<PieceMerges> BuildMerges(const std::vector<Piece>& pieces) {
  PieceMerges out;
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  std::vector<float> scores;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!CanBeMerged(pieces[i])) continue;
    ids[pieces[i].text] = static_cast<int32_t>(i);
    scores.push_back(pieces[i].score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<float>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());

  auto next_virtual_id = static_cast<int32_t>(pieces.size());
  for (const Piece& piece : pieces) {
    if (!CanBeMerged(piece)) continue;
    for (absl::string_view rest = piece.text; !rest.empty();) {
      const unicode::DecodedChar c = unicode::DecodeFront(rest);
      const auto [it, is_new] = ids.try_emplace(rest.substr(0, c.bytes), next_virtual_id);
      if (is_new) ++next_virtual_id;
      out.id_of_char.try_emplace(c.code_point, it->second);
      rest.remove_prefix(c.bytes);
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!CanBeMerged(pieces[i])) continue;
    const absl::string_view text = pieces[i].text;
    const auto rank = static_cast<uint32_t>(
        std::lower_bound(scores.begin(), scores.end(), pieces[i].score, std::greater<float>()) -
        scores.begin());
    for (size_t cut = unicode::DecodeFront(text).bytes; cut < text.size();
         cut += unicode::DecodeFront(text.substr(cut)).bytes) {
      const auto left = ids.find(text.substr(0, cut));
      const auto right = ids.find(text.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      out.merges.Add(left->second, right->second, rank, static_cast<int32_t>(i));
    }
    if (out.merges.size() > kMergesMax) {
      return absl::InvalidArgumentError("tokenizer.model: the pieces give too many merges");
    }
  }
  out.cuts_at_spaces = std::none_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return CanBeMerged(piece) && CrossesSpaceMark(piece.text);
  });
  return out;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  struct Parts {
    PieceMerges pieces;
    int32_t num_pieces = 0;
    int32_t unk_id = 0;
    bool byte_fallback = false;
    bool add_dummy_prefix = true;
    bool remove_extra_whitespaces = true;
    size_t longest_piece_bytes = 1;
    std::array<int32_t, 256> id_of_byte{};
    AddedTokenMatcher control;       // looked for in the text as it is
    AddedTokenMatcher user_defined;  // looked for in the normalized text; never merged
  };
  SentencePieceTokenizer(TokenTable table, Traits traits, Parts parts)
      : Tokenizer(std::move(table), std::move(traits)), parts_(std::move(parts)) {}

  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Create(const SentencePieceModel& model,
                                                                 const TokenizerConfig& config);

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const override;

 private:
  // One call of Encode.
  struct Run {
    size_t tokens_max = 0;  // less what is put behind the text
    std::vector<BpeSymbol> symbols;
    MergeScratch merge;
    std::vector<absl::string_view> words;
    std::vector<int32_t> ids;
    bool after_unknown = false;
  };
  std::string Normalize(absl::string_view text) const;
  absl::Status EncodeStretch(absl::string_view text, Run* run) const;
  void EncodeWord(absl::string_view word, Run* run) const;

  const Parts parts_;
};

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(
    absl::string_view text, const EncodeOptions& options) const {
  RETURN_IF_ERROR(CheckText(text));
  Run run;
  run.tokens_max = options.tokens_max;
  if (options.add_special_tokens) {
    RETURN_IF_ERROR(CheckTokenCount(prefix_ids().size() + suffix_ids().size(), options.tokens_max));
    run.tokens_max -= suffix_ids().size();
    run.ids.assign(prefix_ids().begin(), prefix_ids().end());
  }
  for (const auto& segment : parts_.control.Split(text, options.parse_special)) {
    if (segment.id < 0) {
      RETURN_IF_ERROR(EncodeStretch(text.substr(segment.span.begin, segment.span.size()), &run));
      continue;
    }
    run.ids.push_back(segment.id);
    RETURN_IF_ERROR(CheckTokenCount(run.ids.size(), run.tokens_max));
  }
  if (options.add_special_tokens) {
    run.ids.insert(run.ids.end(), suffix_ids().begin(), suffix_ids().end());
  }
  return std::move(run.ids);
}

std::string SentencePieceTokenizer::Normalize(absl::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4 + kSpaceMark.size());
  if (parts_.remove_extra_whitespaces) {
    while (absl::ConsumePrefix(&text, " ")) {
    }
    while (absl::ConsumeSuffix(&text, " ")) {
    }
  }
  if (text.empty()) return out;
  if (parts_.add_dummy_prefix) absl::StrAppend(&out, kSpaceMark);
  bool after_space = false;
  for (const char c : text) {
    if (c != ' ') {
      out.push_back(c);
    } else if (!(after_space && parts_.remove_extra_whitespaces)) {
      absl::StrAppend(&out, kSpaceMark);
    }
    after_space = c == ' ';
  }
  return out;
}

absl::Status SentencePieceTokenizer::EncodeStretch(absl::string_view text, Run* run) const {
  const std::string normalized = Normalize(text);
  run->after_unknown = false;
  for (const auto& segment : parts_.user_defined.Split(normalized, /*parse_special=*/false)) {
    const absl::string_view part =
        absl::string_view(normalized).substr(segment.span.begin, segment.span.size());
    if (segment.id >= 0) {
      run->ids.push_back(segment.id);
      run->after_unknown = false;
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size(), run->tokens_max));
      continue;
    }
    if (parts_.pieces.cuts_at_spaces) {
      CutBeforeSpaceMarks(part, &run->words);
    } else {
      run->words.assign(1, part);
    }
    for (const absl::string_view word : run->words) {
      // A long run is refused before any work; without byte fallback, unknown characters join.
      const size_t at_least = parts_.byte_fallback ? word.size() / parts_.longest_piece_bytes : 0;
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size() + at_least, run->tokens_max));
      EncodeWord(word, run);
      RETURN_IF_ERROR(CheckTokenCount(run->ids.size(), run->tokens_max));
    }
  }
  return absl::OkStatus();
}

void SentencePieceTokenizer::EncodeWord(absl::string_view word, Run* run) const {
  run->symbols.clear();
  for (absl::string_view rest = word; !rest.empty();) {
    const unicode::DecodedChar c = unicode::DecodeFront(rest);
    const auto it = parts_.pieces.id_of_char.find(c.code_point);
    run->symbols.push_back(
        {it == parts_.pieces.id_of_char.end() ? -1 : it->second, static_cast<uint32_t>(c.bytes)});
    rest.remove_prefix(c.bytes);
  }
  parts_.pieces.merges.Merge(&run->symbols, &run->merge);
  for (const BpeSymbol& symbol : run->symbols) {
    const absl::string_view source = word.substr(0, symbol.bytes);
    word.remove_prefix(symbol.bytes);
    const bool known = symbol.id >= 0 && symbol.id < parts_.num_pieces;
    if (known) {
      run->ids.push_back(symbol.id);
    } else if (parts_.byte_fallback) {
      for (const char c : source) {
        run->ids.push_back(parts_.id_of_byte[static_cast<unsigned char>(c)]);
      }
    } else if (!run->after_unknown) {  // a run of unknown characters is one unknown token
      run->ids.push_back(parts_.unk_id);
    }
    run->after_unknown = !known && !parts_.byte_fallback;
  }
}

// Control tokens and what tokenizer_config.json adds to them, by id.
absl::StatusOr<absl::flat_hash_map<int32_t, AddedToken>> CollectControlTokens(
    const SentencePieceModel& model, const TokenizerConfig& config) {
  absl::flat_hash_map<int32_t, AddedToken> tokens;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    if (piece.type != Type::kControl && piece.type != Type::kUnknown) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    token.content = piece.text;
    token.special = true;
    tokens[token.id] = std::move(token);
  }
  for (AddedToken token : config.added_tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (id < model.pieces.size()) {
      const Piece& piece = model.pieces[id];
      if (piece.text != token.content) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer_config.json.added_tokens_decoder.", id,
                         ": tokenizer.model has another text for this id"));
      }
      if (piece.type == Type::kUserDefined && !token.special) continue;  // found there anyway
      token.special |= piece.type == Type::kControl || piece.type == Type::kUnknown;
    }
    tokens[token.id] = std::move(token);
  }
  return tokens;
}

absl::StatusOr<TokenTable> BuildTable(const SentencePieceModel& model,
                                      const absl::flat_hash_map<int32_t, AddedToken>& control) {
  std::vector<TokenTable::Entry> entries;
  for (const auto& [id, token] : control) entries.push_back({id, token.content, token.special});
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (control.contains(id)) continue;
    const Piece& piece = model.pieces[i];
    if (piece.type == Type::kByte) {
      entries.push_back({id, std::string(1, ByteOfByteToken(piece.text).value_or('\0')), false});
    } else {
      entries.push_back({id, absl::StrReplaceAll(piece.text, {{kSpaceMark, " "}}), false});
    }
  }
  return TokenTable::Build(std::move(entries));
}

absl::StatusOr<std::optional<int32_t>> FindNamedToken(
    const SentencePieceModel& model, const absl::flat_hash_map<int32_t, AddedToken>& control,
    const std::optional<std::string>& name, int32_t fallback, absl::string_view key) {
  if (!name.has_value()) {
    return fallback < 0 ? std::optional<int32_t>() : std::optional<int32_t>(fallback);
  }
  for (const auto& [id, token] : control) {
    if (token.content == *name) return std::optional<int32_t>(id);
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].text == *name) return std::optional<int32_t>(static_cast<int32_t>(i));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer_config.json.", key, ": tokenizer.model has no such token"));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> SentencePieceTokenizer::Create(
    const SentencePieceModel& model, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const auto control, CollectControlTokens(model, config));
  ASSIGN_OR_RETURN(TokenTable table, BuildTable(model, control));
  Traits traits;
  ASSIGN_OR_RETURN(traits.bos_id,
                   FindNamedToken(model, control, config.bos_token, model.bos_id, "bos_token"));
  ASSIGN_OR_RETURN(traits.eos_id,
                   FindNamedToken(model, control, config.eos_token, model.eos_id, "eos_token"));
  if (traits.bos_id.has_value()) traits.prefix_ids = {*traits.bos_id};
  RETURN_IF_ERROR(
      ApplyAddFlags(config, traits.bos_id, traits.eos_id, &traits.prefix_ids, &traits.suffix_ids));
  if (model.add_dummy_prefix || model.remove_extra_whitespaces) {
    traits.leading_space = {LeadingSpaceRule::Kind::kStripSpaces,
                            model.remove_extra_whitespaces ? SIZE_MAX : 1};
  }
  traits.invalid_utf8 = InvalidUtf8::kReplaceEachByte;

  Parts parts;
  parts.num_pieces = static_cast<int32_t>(model.pieces.size());
  parts.unk_id = model.unk_id;
  parts.byte_fallback = model.byte_fallback;
  parts.add_dummy_prefix = model.add_dummy_prefix;
  parts.remove_extra_whitespaces = model.remove_extra_whitespaces;
  parts.id_of_byte.fill(model.unk_id);
  std::vector<AddedTokenMatcher::Pattern> control_patterns, user_patterns;
  for (const auto& [id, token] : control) {
    control_patterns.push_back({token, token.content});
    if (token.special) traits.special_tokens.insert({token.content, id});
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    AddedToken token;
    token.id = static_cast<int32_t>(i);
    parts.longest_piece_bytes = std::max(parts.longest_piece_bytes, piece.text.size());
    if (piece.type == Type::kUserDefined) user_patterns.push_back({token, piece.text});
    if (piece.type == Type::kByte) {
      const char byte = ByteOfByteToken(piece.text).value_or('\0');
      parts.id_of_byte[static_cast<unsigned char>(byte)] = token.id;
    }
  }
  ASSIGN_OR_RETURN(parts.pieces, BuildMerges(model.pieces));
  ASSIGN_OR_RETURN(parts.control, AddedTokenMatcher::Build(std::move(control_patterns)));
  ASSIGN_OR_RETURN(parts.user_defined, AddedTokenMatcher::Build(std::move(user_patterns)));
  return std::make_unique<const SentencePieceTokenizer>(std::move(table), std::move(traits),
                                                        std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> CreateSentencePieceTokenizer(
    absl::string_view model, const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(const SentencePieceModel read, ReadSentencePieceModel(model));
  return SentencePieceTokenizer::Create(read, config);
}

}  // namespace baton
