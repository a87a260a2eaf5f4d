#include "engine/tokenizer/token_decoder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/byte_level.h"

namespace baton {
namespace {

constexpr size_t kReplacementsMax = 16;
constexpr int64_t kStripMax = 1000;

}  // namespace

std::optional<char> ByteOfByteToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token.back() != '>') {
    return std::nullopt;
  }
  const absl::string_view digits = token.substr(3, 2);
  if (!absl::ascii_isxdigit(digits[0]) || !absl::ascii_isxdigit(digits[1])) return std::nullopt;
  return absl::HexStringToBytes(digits)[0];
}

absl::StatusOr<TokenDecoder> TokenDecoder::FromJson(const JsonValue& value,
                                                    const std::string& path) {
  TokenDecoder decoder;
  RETURN_IF_ERROR(decoder.AddFromJson(value, path));
  return decoder;
}

absl::Status TokenDecoder::AddReplace(JsonObjectReader* reader) {
  if (byte_level_ || byte_fallback_ || fused_ || replacements_.size() >= kReplacementsMax) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader->path(), ": Replace is not supported in this place"));
  }
  const JsonValue* pattern = reader->Find("pattern");
  if (pattern == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(reader->path(), ".pattern: missing"));
  }
  ASSIGN_OR_RETURN(JsonObjectReader pattern_reader,
                   JsonObjectReader::Open(*pattern, reader->path() + ".pattern"));
  ASSIGN_OR_RETURN(std::optional<std::string> literal, pattern_reader.OptionalString("String"));
  RETURN_IF_ERROR(pattern_reader.Done());
  if (!literal.has_value() || literal->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ".pattern: not a String with some text"));
  }
  ASSIGN_OR_RETURN(std::string content, reader->String("content"));
  replacements_.emplace_back(*std::move(literal), std::move(content));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddMetaspace(JsonObjectReader* reader) {
  if (byte_level_ || stripped_ || !replacements_.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader->path(), ": Metaspace is not supported in this place"));
  }
  ASSIGN_OR_RETURN(std::string replacement, reader->String("replacement"));
  ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                   reader->OptionalString("prepend_scheme"));
  ASSIGN_OR_RETURN(const std::optional<bool> prefix_space,
                   reader->OptionalBool("add_prefix_space"));
  reader->Ignore("split");
  reader->Ignore("str_rep");
  if (replacement.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(reader->path(), ".replacement: empty"));
  }
  replacements_.emplace_back(std::move(replacement), " ");
  if (scheme != "never" && prefix_space != false) {
    leading_space_.kind = LeadingSpaceRule::Kind::kStripFirstToken;
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(JsonObjectReader* reader) {
  ASSIGN_OR_RETURN(const std::string content, reader->String("content"));
  ASSIGN_OR_RETURN(const int64_t start, reader->Int("start"));
  ASSIGN_OR_RETURN(const int64_t stop, reader->Int("stop"));
  // Behind Fuse it works on the text; before, on every token.
  if (!fused_ || stripped_ || content != " " || start < 0 || start > kStripMax || stop != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        reader->path(),
        ": Strip is supported only once, behind Fuse, for spaces at the start of the text"));
  }
  stripped_ = true;
  if (start > 0) {
    leading_space_ = {LeadingSpaceRule::Kind::kStripSpaces, static_cast<size_t>(start)};
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddFromJson(const JsonValue& value, const std::string& path) {
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(value, path));
  ASSIGN_OR_RETURN(const std::string type, reader.String("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const JsonValue::Array* parts, reader.Array("decoders"));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(AddFromJson((*parts)[i], absl::StrCat(path, ".decoders[", i, "]")));
    }
  } else if (type == "ByteLevel") {
    if (byte_level_ || byte_fallback_ || fused_ || !replacements_.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": ByteLevel is not supported in this place"));
    }
    // These are about encoding and offsets.
    for (const absl::string_view key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      reader.Ignore(key);
    }
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    if (byte_level_ || fused_) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": ByteFallback is not supported in this place"));
    }
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    RETURN_IF_ERROR(AddReplace(&reader));
  } else if (type == "Metaspace") {
    RETURN_IF_ERROR(AddMetaspace(&reader));
  } else if (type == "Strip") {
    RETURN_IF_ERROR(AddStrip(&reader));
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": type '", absl::CHexEscape(type.substr(0, 64)), "' is not supported"));
  }
  return reader.Done();
}

std::string TokenDecoder::BytesOf(absl::string_view token) const {
  if (byte_level_) {
    // Added tokens need not be written in the alphabet: then they stand for themselves.
    std::optional<std::string> bytes = byte_level::Decode(token);
    return bytes.has_value() ? *std::move(bytes) : std::string(token);
  }
  std::string out(token);
  for (const auto& [from, to] : replacements_) out = absl::StrReplaceAll(out, {{from, to}});
  if (byte_fallback_) {
    const std::optional<char> byte = ByteOfByteToken(out);
    if (byte.has_value()) return std::string(1, *byte);
  }
  return out;
}

}  // namespace baton
