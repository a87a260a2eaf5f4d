#include "engine/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr size_t kTextBytesMax = size_t{256} << 20;
constexpr size_t kStepsMax = 64;

// What ByteLevel splits by when it uses its own pattern (GPT-2's).
constexpr absl::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Piece {
  TextSpan span;
  bool is_match;
};

// Covers [0, size) with matches and what lies between them.
void CoverWithPieces(const std::vector<TextSpan>& matches, size_t size, std::vector<Piece>* out) {
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (done != match.begin) out->push_back({{done, match.begin}, false});
    out->push_back({match, true});
    done = match.end;
  }
  if (done != size) out->push_back({{done, size}, false});
}

// Joins pieces as `behavior` says; `out` gets the words, offset by `base`.
void JoinPieces(std::vector<Piece>* pieces, SplitBehavior behavior, size_t base,
                std::vector<TextSpan>* out) {
  const size_t first_out = out->size();
  const auto add = [&](const TextSpan& span) {
    out->push_back({base + span.begin, base + span.end});
  };
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Piece& piece : *pieces) {
        if (!piece.is_match) add(piece.span);
      }
      break;
    case SplitBehavior::kIsolated:
      for (const Piece& piece : *pieces) add(piece.span);
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (const Piece& piece : *pieces) {
        const bool join = behavior == SplitBehavior::kContiguous ? piece.is_match == previous
                                                                 : piece.is_match && !previous;
        if (join && out->size() > first_out) {
          out->back().end = base + piece.span.end;
        } else {
          add(piece.span);
        }
        previous = piece.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto piece = pieces->rbegin(); piece != pieces->rend(); ++piece) {
        if (piece->is_match && !previous && out->size() > first_out) {
          out->back().begin = base + piece->span.begin;
        } else {
          add(piece->span);
        }
        previous = piece->is_match;
      }
      std::reverse(out->begin() + first_out, out->end());
      break;
  }
  out->erase(std::remove_if(out->begin() + first_out, out->end(),
                            [](const TextSpan& span) { return span.size() == 0; }),
             out->end());
}

// Calls `find(word_text, &matches)` for every word and splits it there.
template <typename Find>
absl::Status SplitWords(PreTokens* tokens, SplitBehavior behavior, bool invert, const Find& find) {
  std::vector<TextSpan> words;
  words.reserve(tokens->words.size());
  std::vector<TextSpan> matches;
  std::vector<Piece> pieces;
  const absl::string_view text = tokens->text;
  for (const TextSpan& word : tokens->words) {
    matches.clear();
    pieces.clear();
    RETURN_IF_ERROR(find(text.substr(word.begin, word.size()), &matches));
    CoverWithPieces(matches, word.size(), &pieces);
    if (invert) {
      for (Piece& piece : pieces) piece.is_match = !piece.is_match;
    }
    JoinPieces(&pieces, behavior, word.begin, &words);
  }
  tokens->words = std::move(words);
  return absl::OkStatus();
}

// Replaces each word's text by what `rewrite(word_text, word_index, &text)` appends.
template <typename Rewrite>
absl::Status RewriteWords(PreTokens* tokens, const Rewrite& rewrite) {
  std::string text;
  text.reserve(tokens->text.size() + tokens->words.size());
  for (size_t i = 0; i < tokens->words.size(); ++i) {
    TextSpan& word = tokens->words[i];
    const size_t begin = text.size();
    rewrite(absl::string_view(tokens->text).substr(word.begin, word.size()), i, &text);
    word = {begin, text.size()};
    if (text.size() > kTextBytesMax) {
      return absl::InvalidArgumentError("the pre-tokenized text is longer than 256 MiB");
    }
  }
  tokens->text = std::move(text);
  return absl::OkStatus();
}

absl::Status FindChars(bool (*matches_char)(char32_t), absl::string_view word,
                       std::vector<TextSpan>* matches) {
  for (size_t i = 0; i < word.size();) {
    const unicode::DecodedChar c = unicode::DecodeFront(word.substr(i));
    if (matches_char(c.code_point)) matches->push_back({i, i + c.bytes});
    i += c.bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ReadBehavior(JsonObjectReader* reader) {
  ASSIGN_OR_RETURN(const std::string name, reader->String("behavior"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return absl::InvalidArgumentError(absl::StrCat(reader->path(), ".behavior: unknown value"));
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const JsonValue& value,
                                                    const std::string& path) {
  PreTokenizer pre_tokenizer;
  RETURN_IF_ERROR(pre_tokenizer.AddFromJson(value, path));
  return pre_tokenizer;
}

bool PreTokenizer::ends_in_byte_level() const {
  return !steps_.empty() && std::holds_alternative<ByteAlphabet>(steps_.back());
}

absl::Status PreTokenizer::AddByteLevel(JsonObjectReader* reader) {
  ASSIGN_OR_RETURN(const bool prefix_space, reader->Bool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, reader->Bool("use_regex", true));
  reader->Ignore("trim_offsets");  // offsets into the text are not kept
  if (prefix_space) steps_.push_back(PrefixSpace{});
  if (use_regex) {
    ASSIGN_OR_RETURN(SplitPattern pattern, SplitPattern::Compile(kByteLevelPattern));
    steps_.push_back(Split{std::move(pattern), SplitBehavior::kIsolated, false});
  }
  steps_.push_back(ByteAlphabet{});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddSplit(JsonObjectReader* reader) {
  ASSIGN_OR_RETURN(SplitPattern pattern,
                   ReadPatternJson(reader->Find("pattern"), reader->path() + ".pattern"));
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(reader));
  ASSIGN_OR_RETURN(const bool invert, reader->Bool("invert", false));
  steps_.push_back(Split{std::move(pattern), behavior, invert});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(JsonObjectReader* reader) {
  ASSIGN_OR_RETURN(std::string replacement, reader->String("replacement"));
  if (replacement.empty() || unicode::DecodeFront(replacement).bytes != replacement.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ".replacement: not one character"));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                   reader->OptionalString("prepend_scheme"));
  ASSIGN_OR_RETURN(const std::optional<bool> prefix_space,
                   reader->OptionalBool("add_prefix_space"));
  ASSIGN_OR_RETURN(const bool split, reader->Bool("split", true));
  reader->Ignore("str_rep");
  Metaspace step{replacement, PrependScheme::kAlways};
  if (scheme == "first") {
    step.scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    step.scheme = PrependScheme::kNever;
  } else if (scheme.has_value() && scheme != "always") {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ".prepend_scheme: unknown value"));
  }
  if (prefix_space == false && step.scheme != PrependScheme::kNever) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ".add_prefix_space contradicts prepend_scheme"));
  }
  steps_.push_back(std::move(step));
  if (split) {
    ASSIGN_OR_RETURN(SplitPattern pattern, SplitPattern::Literal(replacement));
    steps_.push_back(Split{std::move(pattern), SplitBehavior::kMergedWithNext, false});
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddFromJson(const JsonValue& value, const std::string& path) {
  if (steps_.size() >= kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", kStepsMax, " steps"));
  }
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(value, path));
  ASSIGN_OR_RETURN(const std::string type, reader.String("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const JsonValue::Array* parts, reader.Array("pretokenizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(AddFromJson((*parts)[i], absl::StrCat(path, ".pretokenizers[", i, "]")));
    }
  } else if (type == "ByteLevel") {
    RETURN_IF_ERROR(AddByteLevel(&reader));
  } else if (type == "Split") {
    RETURN_IF_ERROR(AddSplit(&reader));
  } else if (type == "Metaspace") {
    RETURN_IF_ERROR(AddMetaspace(&reader));
  } else if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, reader.Bool("individual_digits", false));
    steps_.push_back(CharSplit{&unicode::IsNumeric,
                               individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (reader.Find("behavior") != nullptr) {
      ASSIGN_OR_RETURN(behavior, ReadBehavior(&reader));
    }
    steps_.push_back(CharSplit{&unicode::IsPunctuation, behavior});
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(CharSplit{&unicode::IsWhitespace, SplitBehavior::kRemoved});
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": type '", absl::CHexEscape(type.substr(0, 64)), "' is not supported"));
  }
  return reader.Done();
}

absl::Status PreTokenizer::ApplyMetaspace(const Metaspace& step, bool at_text_start,
                                          PreTokens* tokens) {
  return RewriteWords(tokens, [&](absl::string_view word, size_t index, std::string* out) {
    const bool prepend = step.scheme == PrependScheme::kAlways ||
                         (step.scheme == PrependScheme::kFirst && at_text_start && index == 0);
    if (prepend && word.front() != ' ' && !absl::StartsWith(word, step.replacement)) {
      *out += step.replacement;
    }
    for (const char c : word) {
      if (c == ' ') {
        *out += step.replacement;
      } else {
        out->push_back(c);
      }
    }
  });
}

absl::StatusOr<PreTokens> PreTokenizer::Apply(std::string text, bool at_text_start,
                                              bool keep_raw_bytes, Matcher* matcher) const {
  PreTokens tokens;
  tokens.text = std::move(text);
  if (!tokens.text.empty()) tokens.words.push_back({0, tokens.text.size()});
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (const auto* split = std::get_if<Split>(&step)) {
      RETURN_IF_ERROR(SplitWords(&tokens, split->behavior, split->invert,
                                 [&](absl::string_view word, std::vector<TextSpan>* matches) {
                                   return split->pattern.FindAll(word, matcher, matches);
                                 }));
    } else if (const auto* chars = std::get_if<CharSplit>(&step)) {
      RETURN_IF_ERROR(SplitWords(&tokens, chars->behavior, false,
                                 [&](absl::string_view word, std::vector<TextSpan>* matches) {
                                   return FindChars(chars->matches, word, matches);
                                 }));
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      RETURN_IF_ERROR(RewriteWords(&tokens, [](absl::string_view word, size_t, std::string* out) {
        if (word.front() != ' ') out->push_back(' ');
        out->append(word.data(), word.size());
      }));
    } else if (std::holds_alternative<ByteAlphabet>(step)) {
      if (keep_raw_bytes && i + 1 == steps_.size()) break;
      RETURN_IF_ERROR(RewriteWords(&tokens, [](absl::string_view word, size_t, std::string* out) {
        *out += byte_level::Encode(word);
      }));
    } else {
      RETURN_IF_ERROR(ApplyMetaspace(std::get<Metaspace>(step), at_text_start, &tokens));
    }
  }
  return tokens;
}

}  // namespace baton
