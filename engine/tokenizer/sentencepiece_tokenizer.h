// Tokenizer of a SentencePiece tokenizer.model of type BPE, with byte fallback, dummy prefix,
// control and user-defined pieces. Encodes plain text as `sentencepiece` does.
//
// Control tokens are found in a text (with parse_special) before SentencePiece sees it; each
// stretch between them is encoded as a text of its own, with its own dummy prefix, which is what
// the fast tokenizers made from such files do. BOS is added unless tokenizer_config.json says
// otherwise.
#ifndef BATON_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define BATON_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_config.h"

namespace baton {

// ERRORS: those of Tokenizer::Create.
absl::StatusOr<std::unique_ptr<const Tokenizer>> CreateSentencePieceTokenizer(
    absl::string_view model, const TokenizerConfig& config);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
