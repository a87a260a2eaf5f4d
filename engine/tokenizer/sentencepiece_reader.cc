#include "engine/tokenizer/sentencepiece_reader.h"

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/tokenizer/sentencepiece_model.pb.h"
#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr char kFileName[] = "tokenizer.model";
constexpr size_t kFileBytesMax = size_t{64} << 20;
constexpr size_t kPieceBytesMax = 512;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(kFileName, ": ", what));
}
absl::Status Unsupported(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(kFileName, ": ", what, " is not supported"));
}

absl::StatusOr<SentencePieceModel::Type> TypeOf(const tokenizer::SentencePiece& piece) {
  switch (piece.type()) {
    case tokenizer::SentencePiece::NORMAL:
      return SentencePieceModel::Type::kNormal;
    case tokenizer::SentencePiece::UNKNOWN:
      return SentencePieceModel::Type::kUnknown;
    case tokenizer::SentencePiece::CONTROL:
      return SentencePieceModel::Type::kControl;
    case tokenizer::SentencePiece::USER_DEFINED:
      return SentencePieceModel::Type::kUserDefined;
    case tokenizer::SentencePiece::BYTE:
      return SentencePieceModel::Type::kByte;
    case tokenizer::SentencePiece::UNUSED:
      break;
  }
  return Unsupported("an unused piece");
}

absl::Status CheckSupported(const tokenizer::ModelProto& proto) {
  const tokenizer::TrainerSpec& trainer = proto.trainer_spec();
  const tokenizer::NormalizerSpec& normalizer = proto.normalizer_spec();
  if (trainer.model_type() != tokenizer::TrainerSpec::BPE) {
    return Unsupported(absl::StrCat("model_type ",
                                    tokenizer::TrainerSpec::ModelType_Name(trainer.model_type()),
                                    " (only BPE is)"));
  }
  if (!normalizer.precompiled_charsmap().empty()) {
    return Unsupported("a normalizer other than identity (precompiled_charsmap)");
  }
  if (trainer.treat_whitespace_as_suffix()) return Unsupported("treat_whitespace_as_suffix");
  if (!normalizer.escape_whitespaces()) return Unsupported("escape_whitespaces = false");
  return absl::OkStatus();
}

absl::StatusOr<int32_t> OptionalId(int32_t id, size_t num_pieces, absl::string_view name) {
  if (id >= 0 && static_cast<size_t>(id) >= num_pieces) {
    return Malformed(absl::StrCat(name, " ", id, " is not a piece"));
  }
  return id < 0 ? -1 : id;
}

absl::Status CheckBytes(const SentencePieceModel& model) {
  std::vector<bool> seen(256, false);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != SentencePieceModel::Type::kByte) continue;
    const std::optional<char> byte = ByteOfByteToken(model.pieces[i].text);
    if (!byte.has_value()) return Malformed(absl::StrCat("piece ", i, " is not a byte"));
    const auto value = static_cast<unsigned char>(*byte);
    if (seen[value]) return Malformed(absl::StrCat("byte ", value, " is there twice"));
    seen[value] = true;
  }
  if (!model.byte_fallback) return absl::OkStatus();
  for (int byte = 0; byte < 256; ++byte) {
    if (!seen[byte]) return Malformed(absl::StrCat("byte_fallback without a piece for ", byte));
  }
  return absl::OkStatus();
}

absl::StatusOr<SentencePieceModel::Piece> ReadPiece(const tokenizer::SentencePiece& proto, int i) {
  SentencePieceModel::Piece piece;
  ASSIGN_OR_RETURN(piece.type, TypeOf(proto));
  piece.text = proto.piece();
  piece.score = proto.score();
  if (piece.text.empty() || piece.text.size() > kPieceBytesMax) {
    return Malformed(absl::StrCat("piece ", i, " has ", piece.text.size(), " bytes, 1 to ",
                                  kPieceBytesMax, " are allowed"));
  }
  if (unicode::FindInvalidUtf8(piece.text) != absl::string_view::npos) {
    return Malformed(absl::StrCat("piece ", i, " is not valid UTF-8"));
  }
  if (std::isnan(piece.score)) return Malformed(absl::StrCat("the score of piece ", i, " is NaN"));
  return piece;
}

}  // namespace

absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(absl::string_view bytes) {
  if (bytes.size() > kFileBytesMax) {
    return Malformed(absl::StrCat(bytes.size(), " bytes, at most ", kFileBytesMax));
  }
  tokenizer::ModelProto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed("not a SentencePiece model (protobuf does not parse)");
  }
  if (proto.pieces().empty()) return Malformed("no pieces");
  if (proto.pieces_size() > kTokenIdMax) {
    return Malformed(absl::StrCat(proto.pieces_size(), " pieces, at most ", kTokenIdMax));
  }
  RETURN_IF_ERROR(CheckSupported(proto));

  SentencePieceModel model;
  model.byte_fallback = proto.trainer_spec().byte_fallback();
  model.add_dummy_prefix = proto.normalizer_spec().add_dummy_prefix();
  model.remove_extra_whitespaces = proto.normalizer_spec().remove_extra_whitespaces();
  absl::flat_hash_set<absl::string_view> seen;
  int unknowns = 0;
  model.pieces.reserve(proto.pieces_size());
  for (int i = 0; i < proto.pieces_size(); ++i) {
    ASSIGN_OR_RETURN(SentencePieceModel::Piece piece, ReadPiece(proto.pieces(i), i));
    if (!seen.insert(proto.pieces(i).piece()).second) {
      return Malformed(absl::StrCat("piece ", i, " has the text of an earlier one"));
    }
    if (piece.type == SentencePieceModel::Type::kUnknown) {
      model.unk_id = i;
      ++unknowns;
    }
    model.pieces.push_back(std::move(piece));
  }
  if (unknowns != 1) {
    return Malformed(absl::StrCat(unknowns, " pieces of type UNKNOWN, there must be one"));
  }
  RETURN_IF_ERROR(CheckBytes(model));
  ASSIGN_OR_RETURN(model.bos_id,
                   OptionalId(proto.trainer_spec().bos_id(), model.pieces.size(), "bos_id"));
  ASSIGN_OR_RETURN(model.eos_id,
                   OptionalId(proto.trainer_spec().eos_id(), model.pieces.size(), "eos_id"));
  return model;
}

}  // namespace baton
