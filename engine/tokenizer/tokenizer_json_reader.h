// Reads a tokenizer.json into its components; tokenizer_json.h makes a tokenizer of them. Plain
// data.
#ifndef BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_READER_H_
#define BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_READER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/token_decoder.h"

namespace baton {

struct TokenizerJson {
  BpeModel::Spec model;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  // What TemplateProcessing puts before and after a single text.
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

// ERRORS: InvalidArgument when malformed, FailedPrecondition for what is not supported; messages
// name the component by its path in the file.
absl::StatusOr<TokenizerJson> ReadTokenizerJson(absl::string_view json);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_READER_H_
