// Reads a SentencePiece tokenizer.model. The only code that knows protobuf here. Plain data.
#ifndef BATON_ENGINE_TOKENIZER_SENTENCEPIECE_READER_H_
#define BATON_ENGINE_TOKENIZER_SENTENCEPIECE_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton {

struct SentencePieceModel {
  enum class Type { kNormal, kUnknown, kControl, kUserDefined, kByte };
  struct Piece {
    std::string text;  // valid UTF-8, not empty, at most 512 bytes
    float score = 0;   // not NaN
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;  // the index is the id; texts are unique
  bool byte_fallback = false;
  int32_t unk_id = 0;   // of the one piece of type kUnknown
  int32_t bos_id = -1;  // -1: none
  int32_t eos_id = -1;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

// ERRORS: InvalidArgument for anything malformed; FailedPrecondition naming what is not supported:
// model types other than BPE, a normalization table (charsmap), white space as a suffix or not
// escaped, unused pieces.
absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(absl::string_view bytes);

}  // namespace baton

#endif  // BATON_ENGINE_TOKENIZER_SENTENCEPIECE_READER_H_
