#include "engine/tokenizer/tokenizer_json_reader.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace baton {
namespace {

constexpr char kFileName[] = "tokenizer.json";

absl::StatusOr<int32_t> CheckedId(const JsonValue& value, absl::string_view path) {
  const int64_t* id = value.as_int();
  if (id == nullptr || *id < 0 || *id > kTokenIdMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a token id is not an integer in 0..", kTokenIdMax));
  }
  return static_cast<int32_t>(*id);
}

absl::Status ReadVocab(const JsonValue* value, BpeModel::Spec* spec) {
  if (value == nullptr || value->as_object() == nullptr) {
    return absl::InvalidArgumentError("model.vocab: not an object");
  }
  spec->vocab.reserve(value->as_object()->size());
  for (const auto& [token, id_value] : *value->as_object()) {
    ASSIGN_OR_RETURN(const int32_t id, CheckedId(id_value, "model.vocab"));
    spec->vocab.insert({token, id});
  }
  return absl::OkStatus();
}

// "left right" (the older form) or ["left", "right"].
absl::Status ReadMerges(const JsonValue::Array& values, BpeModel::Spec* spec) {
  spec->merges.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string* text = values[i].as_string();
    if (text != nullptr) {
      if (absl::StartsWith(*text, "#version")) continue;
      const size_t space = text->find(' ');
      if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.merges[", i, "]: not two parts with one space between"));
      }
      spec->merges.emplace_back(text->substr(0, space), text->substr(space + 1));
      continue;
    }
    const JsonValue::Array* pair = values[i].as_array();
    if (pair == nullptr || pair->size() != 2 || (*pair)[0].as_string() == nullptr ||
        (*pair)[1].as_string() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.merges[", i, "]: neither a string nor a pair of strings"));
    }
    spec->merges.emplace_back(*(*pair)[0].as_string(), *(*pair)[1].as_string());
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeModel::Spec> ReadModel(const JsonValue* value) {
  if (value == nullptr) return absl::InvalidArgumentError("model: missing");
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(*value, "model"));
  // Files from before 2020 have no type; only BPE has merges.
  ASSIGN_OR_RETURN(const std::optional<std::string> type, reader.OptionalString("type"));
  const bool has_merges = reader.Find("merges") != nullptr;
  if (type.has_value() ? type != "BPE" : !has_merges) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.type '", absl::CHexEscape(type.value_or("").substr(0, 64)),
                     "' is not supported, only BPE"));
  }
  BpeModel::Spec spec;
  RETURN_IF_ERROR(ReadVocab(reader.Find("vocab"), &spec));
  ASSIGN_OR_RETURN(const JsonValue::Array* merges, reader.Array("merges"));
  RETURN_IF_ERROR(ReadMerges(*merges, &spec));
  ASSIGN_OR_RETURN(const std::optional<std::string> unk, reader.OptionalString("unk_token"));
  spec.unk_token = unk.value_or("");
  ASSIGN_OR_RETURN(spec.fuse_unk, reader.Bool("fuse_unk", false));
  ASSIGN_OR_RETURN(spec.byte_fallback, reader.Bool("byte_fallback", false));
  ASSIGN_OR_RETURN(spec.ignore_merges, reader.Bool("ignore_merges", false));
  for (const absl::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> affix, reader.OptionalString(key));
    if (!affix.value_or("").empty()) {
      return absl::FailedPreconditionError(absl::StrCat("model.", key, " is not supported"));
    }
  }
  const JsonValue* dropout = reader.Find("dropout");
  if (dropout != nullptr) {
    const double* p = dropout->as_double();
    const int64_t* n = dropout->as_int();
    if (!(p != nullptr && *p == 0) && !(n != nullptr && *n == 0)) {
      return absl::FailedPreconditionError("model.dropout is not supported");
    }
  }
  RETURN_IF_ERROR(reader.Done());
  return spec;
}

absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const JsonValue::Array& values,
                                                        const BpeModel::Spec& spec) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string path = absl::StrCat("added_tokens[", i, "]");
    ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(values[i], path));
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedTokenJson(&reader));
    const JsonValue* id = reader.Find("id");
    if (id == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ".id: missing"));
    ASSIGN_OR_RETURN(token.id, CheckedId(*id, path));
    RETURN_IF_ERROR(reader.Done());
    const auto in_vocab = spec.vocab.find(token.content);
    if (in_vocab != spec.vocab.end() && in_vocab->second != token.id) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": id ", token.id, ", but model.vocab says ", in_vocab->second));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::Status AppendTemplateToken(const JsonValue& piece, const JsonValue* special_tokens,
                                 const std::string& path, std::vector<int32_t>* out) {
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(piece, path));
  ASSIGN_OR_RETURN(const std::string name, reader.String("id"));
  if (special_tokens != nullptr && special_tokens->as_object() != nullptr) {
    for (const auto& [key, value] : *special_tokens->as_object()) {
      if (key != name) continue;
      ASSIGN_OR_RETURN(JsonObjectReader token, JsonObjectReader::Open(value, path));
      ASSIGN_OR_RETURN(const JsonValue::Array* ids, token.Array("ids"));
      for (const JsonValue& id_value : *ids) {
        ASSIGN_OR_RETURN(const int32_t id, CheckedId(id_value, path));
        out->push_back(id);
      }
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": its token is not in special_tokens"));
}

absl::Status ReadTemplate(JsonObjectReader* reader, TokenizerJson* result) {
  ASSIGN_OR_RETURN(const JsonValue::Array* pieces, reader->Array("single"));
  const JsonValue* special_tokens = reader->Find("special_tokens");
  reader->Ignore("pair");  // for two texts at once, which nobody encodes here
  bool seen_text = false;
  for (size_t i = 0; i < pieces->size(); ++i) {
    const std::string path = absl::StrCat(reader->path(), ".single[", i, "]");
    ASSIGN_OR_RETURN(JsonObjectReader piece, JsonObjectReader::Open((*pieces)[i], path));
    const JsonValue* sequence = piece.Find("Sequence");
    const JsonValue* special = piece.Find("SpecialToken");
    RETURN_IF_ERROR(piece.Done());
    if ((sequence == nullptr) == (special == nullptr)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": not one of Sequence and SpecialToken"));
    }
    if (special != nullptr) {
      RETURN_IF_ERROR(AppendTemplateToken(*special, special_tokens, path,
                                          seen_text ? &result->suffix_ids : &result->prefix_ids));
      continue;
    }
    ASSIGN_OR_RETURN(JsonObjectReader text, JsonObjectReader::Open(*sequence, path));
    ASSIGN_OR_RETURN(const std::string name, text.String("id"));
    if (name != "A" || seen_text) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not sequence A, once"));
    }
    seen_text = true;
  }
  if (!seen_text) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader->path(), ".single: sequence A is missing"));
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonValue& value, const std::string& path, bool* seen_template,
                               TokenizerJson* result) {
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(value, path));
  ASSIGN_OR_RETURN(const std::string type, reader.String("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const JsonValue::Array* parts, reader.Array("processors"));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(ReadPostProcessor((*parts)[i], absl::StrCat(path, ".processors[", i, "]"),
                                        seen_template, result));
    }
  } else if (type == "TemplateProcessing" && !*seen_template) {
    *seen_template = true;
    RETURN_IF_ERROR(ReadTemplate(&reader, result));
  } else if (type == "ByteLevel") {
    // Only moves offsets, which are not kept.
    for (const absl::string_view key : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      reader.Ignore(key);
    }
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": type '", absl::CHexEscape(type.substr(0, 64)),
                     "' is not supported (TemplateProcessing is, once)"));
  }
  return reader.Done();
}

}  // namespace

absl::StatusOr<TokenizerJson> ReadTokenizerJson(absl::string_view json) {
  ASSIGN_OR_RETURN(const JsonValue root, ParseJson(json, kFileName));
  TokenizerJson c;
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(root, kFileName));
  ASSIGN_OR_RETURN(c.model, ReadModel(reader.Find("model")));
  ASSIGN_OR_RETURN(const JsonValue::Array* added, reader.Array("added_tokens"));
  ASSIGN_OR_RETURN(c.added_tokens, ReadAddedTokens(*added, c.model));
  if (const JsonValue* value = reader.Find("normalizer"); value != nullptr) {
    ASSIGN_OR_RETURN(c.normalizer, Normalizer::FromJson(*value, "normalizer"));
  }
  if (const JsonValue* value = reader.Find("pre_tokenizer"); value != nullptr) {
    ASSIGN_OR_RETURN(c.pre_tokenizer, PreTokenizer::FromJson(*value, "pre_tokenizer"));
  }
  const JsonValue* decoder = reader.Find("decoder");
  if (decoder == nullptr) return absl::FailedPreconditionError("decoder: missing");
  ASSIGN_OR_RETURN(c.decoder, TokenDecoder::FromJson(*decoder, "decoder"));
  if (const JsonValue* value = reader.Find("post_processor"); value != nullptr) {
    bool seen_template = false;
    RETURN_IF_ERROR(ReadPostProcessor(*value, "post_processor", &seen_template, &c));
  }
  for (const absl::string_view key : {"version", "truncation", "padding"}) reader.Ignore(key);
  RETURN_IF_ERROR(reader.Done());
  return c;
}

}  // namespace baton
