// TextCodec over engine/tokenizer.
#ifndef BATON_ROUTER_TEXT_TOKENIZER_CODEC_H_
#define BATON_ROUTER_TEXT_TOKENIZER_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "router/text/text_codec.h"

namespace baton::router {

// Takes as long as the vocabulary is large (a second for 128,000 tokens). Thread-safe.
// ERRORS: those of Tokenizer::Create.
absl::StatusOr<std::shared_ptr<const TextCodec>> MakeTokenizerCodec(
    const TokenizerArtifacts& artifacts);

}  // namespace baton::router

#endif  // BATON_ROUTER_TEXT_TOKENIZER_CODEC_H_
