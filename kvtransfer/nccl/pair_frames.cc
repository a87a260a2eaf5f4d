#include "kvtransfer/nccl/pair_frames.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "kvtransfer/little_endian.h"

namespace baton::kvtransfer {
namespace {

constexpr absl::string_view kOpeningMagic = "BKNO";
constexpr absl::string_view kAnswerMagic = "BKNA";
constexpr absl::string_view kOutcomeMagic = "BKNR";
constexpr absl::string_view kFrameMagic = "BKNF";

// The first 8 bytes of everything: magic, version, and a field that differs in meaning.
void StorePrefix(absl::string_view magic, uint16_t field, std::byte* to) {
  std::memcpy(to, magic.data(), 4);
  StoreLittleEndian<uint16_t>(kPairFrameVersion, to + 4);
  StoreLittleEndian<uint16_t>(field, to + 6);
}

// The field.
absl::StatusOr<uint16_t> LoadPrefix(absl::string_view magic, uint16_t field_max,
                                    const std::byte* from) {
  const auto field = LoadLittleEndian<uint16_t>(from + 6);
  if (std::memcmp(from, magic.data(), 4) != 0 ||
      LoadLittleEndian<uint16_t>(from + 4) != kPairFrameVersion || field > field_max) {
    return absl::DataLossError("nccl wire: not a message of version 1");
  }
  return field;
}

}  // namespace

absl::string_view PairVerdictText(PairVerdict verdict) {
  switch (verdict) {
    case PairVerdict::kNccl:
      return "both can use NCCL";
    case PairVerdict::kSameDevice:
      return "both processes use the same GPU, which NCCL refuses";
    case PairVerdict::kLibraryVersions:
      return "the two processes have different versions of NCCL";
    case PairVerdict::kNoRoom:
      return "as many communicators as there may be are in use";
    case PairVerdict::kFailed:
      return "no communicator could be made";
  }
  return "unknown";
}

PairOpeningBytes EncodePairOpening(const PairOpening& opening) {
  PairOpeningBytes bytes{};
  StorePrefix(kOpeningMagic, 0, bytes.data());
  StoreLittleEndian<uint32_t>(opening.num_ctas, bytes.data() + 8);
  StoreLittleEndian<uint32_t>(opening.library_version, bytes.data() + 12);
  std::copy(opening.device_uuid.begin(), opening.device_uuid.end(), bytes.begin() + 16);
  return bytes;
}

PairAnswerBytes EncodePairAnswer(const PairAnswer& answer) {
  PairAnswerBytes bytes{};
  StorePrefix(kAnswerMagic, static_cast<uint16_t>(answer.verdict), bytes.data());
  StoreLittleEndian<uint32_t>(answer.num_ctas, bytes.data() + 8);
  std::copy(answer.id.begin(), answer.id.end(), bytes.begin() + 16);
  return bytes;
}

PairOutcomeBytes EncodePairOutcome(bool made) {
  PairOutcomeBytes bytes{};
  StorePrefix(kOutcomeMagic, made ? 1 : 0, bytes.data());
  return bytes;
}

PairFrameBytes EncodePairFrame(const PairFrame& frame) {
  PairFrameBytes bytes{};
  StorePrefix(kFrameMagic, static_cast<uint16_t>(frame.kind), bytes.data());
  StoreLittleEndian<uint64_t>(frame.sequence_number, bytes.data() + 8);
  StoreLittleEndian<uint64_t>(frame.length, bytes.data() + 16);
  return bytes;
}

absl::StatusOr<PairOpening> DecodePairOpening(const PairOpeningBytes& bytes) {
  if (auto field = LoadPrefix(kOpeningMagic, 0, bytes.data()); !field.ok()) return field.status();
  PairOpening opening{.num_ctas = LoadLittleEndian<uint32_t>(bytes.data() + 8),
                      .library_version = LoadLittleEndian<uint32_t>(bytes.data() + 12)};
  std::copy(bytes.begin() + 16, bytes.end(), opening.device_uuid.begin());
  return opening;
}

absl::StatusOr<PairAnswer> DecodePairAnswer(const PairAnswerBytes& bytes) {
  const auto verdict = LoadPrefix(kAnswerMagic, kPairVerdictMax, bytes.data());
  if (!verdict.ok()) return verdict.status();
  PairAnswer answer{.verdict = static_cast<PairVerdict>(*verdict),
                    .num_ctas = LoadLittleEndian<uint32_t>(bytes.data() + 8)};
  std::copy(bytes.begin() + 16, bytes.end(), answer.id.begin());
  return answer;
}

absl::StatusOr<bool> DecodePairOutcome(const PairOutcomeBytes& bytes) {
  const auto made = LoadPrefix(kOutcomeMagic, 1, bytes.data());
  if (!made.ok()) return made.status();
  return *made == 1;
}

absl::StatusOr<PairFrame> DecodePairFrame(const PairFrameBytes& bytes) {
  const auto kind = LoadPrefix(kFrameMagic, 2, bytes.data());
  if (!kind.ok()) return kind.status();
  if (*kind == 0) return absl::DataLossError("nccl wire: a frame of no kind");
  return PairFrame{.kind = static_cast<PairFrame::Kind>(*kind),
                   .sequence_number = LoadLittleEndian<uint64_t>(bytes.data() + 8),
                   .length = LoadLittleEndian<uint64_t>(bytes.data() + 16)};
}

}  // namespace baton::kvtransfer
