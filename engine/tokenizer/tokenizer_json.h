// Reader of Hugging Face's tokenizer.json with a BPE model. See tokenizer.h for what the result
// promises, normalizer.h, pre_tokenizer.h, bpe_model.h and token_decoder.h for what is supported.
#ifndef BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
#define BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace baton {

// ERRORS: those of Tokenizer::Create; messages name the component by its path in the file.
absl::StatusOr<std::unique_ptr<const Tokenizer>> CreateJsonTokenizer(absl::string_view json,
                                                                     const TokenizerConfig& config);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_TOKENIZER_JSON_H_
