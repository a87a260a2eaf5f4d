// tokenizer_dump --json|--model FILE CASES: for each line of CASES, a JSON object, prints one line:
//   {"text": "...", "add_special": bool, "parse_special": bool}  -> [ids]
//   {"decode": [ids], "skip_special": bool}                      -> "text"
// or {"error": "..."}. tools/tokenizer_golden.py drives it to compare with the reference.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/tokenizer.h"

namespace baton {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

absl::StatusOr<std::string> Answer(const Tokenizer& tokenizer, const std::string& line) {
  ASSIGN_OR_RETURN(const JsonValue value, ParseJson(line, "case"));
  ASSIGN_OR_RETURN(JsonObjectReader reader, JsonObjectReader::Open(value, "case"));
  if (reader.Find("decode") == nullptr) {
    EncodeOptions options;
    ASSIGN_OR_RETURN(const std::string text, reader.String("text"));
    ASSIGN_OR_RETURN(options.add_special_tokens, reader.Bool("add_special", true));
    ASSIGN_OR_RETURN(options.parse_special, reader.Bool("parse_special", false));
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, options));
    return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
  }
  DecodeOptions options;
  ASSIGN_OR_RETURN(options.skip_special, reader.Bool("skip_special", true));
  ASSIGN_OR_RETURN(const JsonValue::Array* values, reader.Array("decode"));
  std::vector<int32_t> ids;
  for (const JsonValue& id : *values) {
    if (id.as_int() == nullptr) return absl::InvalidArgumentError("decode: not integers");
    ids.push_back(static_cast<int32_t>(*id.as_int()));
  }
  return JsonString(tokenizer.Decode(ids, options));
}

int Run(int argc, char** argv) {
  const std::string kind = argc == 4 ? argv[1] : "";
  if (kind != "--json" && kind != "--model") {
    std::cerr << "usage: tokenizer_dump --json|--model FILE CASES\n";
    return 2;
  }
  TokenizerFiles files;
  (kind == "--json" ? files.tokenizer_json : files.tokenizer_model) = ReadFile(argv[2]);
  const auto tokenizer = Tokenizer::Create(files);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().ToString() << "\n";
    return 1;
  }
  std::ifstream cases(argv[3], std::ios::binary);
  for (std::string line; std::getline(cases, line);) {
    const auto answer = Answer(**tokenizer, line);
    std::cout << (answer.ok()
                      ? *answer
                      : absl::StrCat("{\"error\":", JsonString(answer.status().ToString()), "}"))
              << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Run(argc, argv); }
