#include "engine/tokenizer/normalizer.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

constexpr size_t kTextBytesMax = size_t{256} << 20;
constexpr size_t kStepsMax = 64;

absl::Status ReplaceAll(const SplitPattern& pattern, absl::string_view content, Matcher* matcher,
                        std::string* text) {
  std::vector<TextSpan> matches;
  RETURN_IF_ERROR(pattern.FindAll(*text, matcher, &matches));
  if (matches.empty()) return absl::OkStatus();
  if (matches.size() * content.size() > kTextBytesMax) {
    return absl::InvalidArgumentError("the normalized text is longer than 256 MiB");
  }
  std::string out;
  out.reserve(text->size() + matches.size() * content.size());
  size_t done = 0;
  for (const TextSpan& match : matches) {
    out.append(*text, done, match.begin - done);
    out.append(content.data(), content.size());
    done = match.end;
  }
  out.append(*text, done, text->size() - done);
  *text = std::move(out);
  return absl::OkStatus();
}

void StripSpaces(bool left, bool right, std::string* text) {
  absl::string_view rest = *text;
  while (left && !rest.empty()) {
    const unicode::DecodedChar c = unicode::DecodeFront(rest);
    if (!unicode::IsWhitespace(c.code_point)) break;
    rest.remove_prefix(c.bytes);
  }
  while (right && !rest.empty()) {
    const unicode::DecodedChar c = unicode::DecodeBack(rest);
    if (!unicode::IsWhitespace(c.code_point)) break;
    rest.remove_suffix(c.bytes);
  }
  if (rest.size() != text->size()) *text = std::string(rest);
}

}  // namespace

absl::StatusOr<SplitPattern> ReadPatternJson(const JsonValue* value, const std::string& path) {
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": missing"));
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(*value, path));
  ASSIGN_OR_RETURN(const std::optional<std::string> literal, reader.OptionalString("String"));
  ASSIGN_OR_RETURN(const std::optional<std::string> regex, reader.OptionalString("Regex"));
  RETURN_IF_ERROR(reader.Done());
  if (literal.has_value() == regex.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not one of String and Regex"));
  }
  auto pattern =
      literal.has_value() ? SplitPattern::Literal(*literal) : SplitPattern::Compile(*regex);
  if (!pattern.ok()) return Annotate(pattern.status(), path);
  return pattern;
}

absl::StatusOr<Normalizer> Normalizer::FromJson(const JsonValue& value, const std::string& path) {
  Normalizer normalizer;
  RETURN_IF_ERROR(normalizer.AddFromJson(value, path));
  return normalizer;
}

absl::Status Normalizer::AddFromJson(const JsonValue& value, const std::string& path) {
  if (steps_.size() >= kStepsMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", kStepsMax, " steps"));
  }
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(value, path));
  ASSIGN_OR_RETURN(const std::string type, reader.String("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const JsonValue::Array* parts, reader.Array("normalizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(AddFromJson((*parts)[i], absl::StrCat(path, ".normalizers[", i, "]")));
    }
  } else if (type == "NFC") {
    steps_.push_back(Form{unicode::NormalForm::kNfc});
  } else if (type == "NFD") {
    steps_.push_back(Form{unicode::NormalForm::kNfd});
  } else if (type == "NFKC") {
    steps_.push_back(Form{unicode::NormalForm::kNfkc});
  } else if (type == "NFKD") {
    steps_.push_back(Form{unicode::NormalForm::kNfkd});
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, reader.String("prepend"));
    steps_.push_back(Prepend{std::move(prefix)});
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(SplitPattern pattern,
                     ReadPatternJson(reader.Find("pattern"), path + ".pattern"));
    ASSIGN_OR_RETURN(std::string content, reader.String("content"));
    steps_.push_back(Replace{std::move(pattern), std::move(content)});
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, reader.Bool("strip_left", false));
    ASSIGN_OR_RETURN(const bool right, reader.Bool("strip_right", false));
    steps_.push_back(Strip{left, right});
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": type '", absl::CHexEscape(type.substr(0, 64)), "' is not supported"));
  }
  return reader.Done();
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text, Matcher* matcher) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      out = unicode::Normalize(form->form, out);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!out.empty()) out.insert(0, prepend->prefix);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      RETURN_IF_ERROR(ReplaceAll(replace->pattern, replace->content, matcher, &out));
    } else {
      const auto& strip = std::get<Strip>(step);
      StripSpaces(strip.left, strip.right, &out);
    }
    if (out.size() > kTextBytesMax) {
      return absl::InvalidArgumentError("the normalized text is longer than 256 MiB");
    }
  }
  return out;
}

}  // namespace baton
