// What the two ends of an NCCL pair say over the TCP connection that stays beside the communicator.
// All integers are little-endian.
//
//   opening  P -> D   magic "BKNO" | version u16 | 0 u16 | CTAs u32 | library version u32 | UUID of
//                     the GPU, 16 bytes
//   answer   D -> P   magic "BKNA" | version u16 | verdict u16 | CTAs u32 | 0 u32 | id, 128 bytes
//   outcome  both     magic "BKNR" | version u16 | made u16
//   frame    both     magic "BKNF" | version u16 | kind u16 | sequence number u64 | length u64
//
// D sends a frame kReceivePosted for every receive, P a frame kSendPosted for every send, in order:
// each is compared with the other side's before anything is launched. Pure functions.
#ifndef BATON_KVTRANSFER_NCCL_PAIR_FRAMES_H_
#define BATON_KVTRANSFER_NCCL_PAIR_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvtransfer/nccl/pair_communicator.h"

namespace baton::kvtransfer {

inline constexpr uint16_t kPairFrameVersion = 1;

// D's word on what the pair becomes.
enum class PairVerdict : uint16_t {
  kNccl = 0,
  kSameDevice = 1,       // Both processes use one GPU: NCCL refuses that.
  kLibraryVersions = 2,  // Two versions of NCCL.
  kNoRoom = 3,           // As many communicators as there may be.
  kFailed = 4,           // D could not begin.
};
inline constexpr uint16_t kPairVerdictMax = 4;
absl::string_view PairVerdictText(PairVerdict verdict);

struct PairOpening {
  uint32_t num_ctas = 0;
  uint32_t library_version = 0;
  DeviceUuid device_uuid{};
};
struct PairAnswer {
  PairVerdict verdict = PairVerdict::kFailed;
  uint32_t num_ctas = 0;
  PairId id{};
};
struct PairFrame {
  enum class Kind : uint16_t { kReceivePosted = 1, kSendPosted = 2 };
  Kind kind = Kind::kReceivePosted;
  uint64_t sequence_number = 0;
  uint64_t length = 0;
};

using PairOpeningBytes = std::array<std::byte, 32>;
using PairAnswerBytes = std::array<std::byte, 144>;
using PairOutcomeBytes = std::array<std::byte, 8>;
using PairFrameBytes = std::array<std::byte, 24>;

PairOpeningBytes EncodePairOpening(const PairOpening& opening);
PairAnswerBytes EncodePairAnswer(const PairAnswer& answer);
PairOutcomeBytes EncodePairOutcome(bool made);
PairFrameBytes EncodePairFrame(const PairFrame& frame);

// ERRORS: DataLoss: magic, version, a reserved field or a value is wrong.
absl::StatusOr<PairOpening> DecodePairOpening(const PairOpeningBytes& bytes);
absl::StatusOr<PairAnswer> DecodePairAnswer(const PairAnswerBytes& bytes);
absl::StatusOr<bool> DecodePairOutcome(const PairOutcomeBytes& bytes);
absl::StatusOr<PairFrame> DecodePairFrame(const PairFrameBytes& bytes);

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_NCCL_PAIR_FRAMES_H_
