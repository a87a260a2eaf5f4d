#include "kvtransfer/nccl/pair_opening.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "kvtransfer/nccl/pair_frames.h"
#include "kvtransfer/tcp/tcp_socket.h"

namespace baton::kvtransfer {
namespace {

// For a communicator that is just being aborted to make room: that takes up to 0.66 s.
constexpr Duration kRoomLimit = std::chrono::milliseconds(800);
constexpr Duration kCaptureLimit = std::chrono::seconds(1);
constexpr Duration kMakingNap = std::chrono::milliseconds(1);
constexpr int kCtasMax = 64;

// What the peer has said of its own half while ours is being made.
enum class PeerOutcome { kUnknown, kMade, kFailed };

// Waits up to kMakingNap for it.
PeerOutcome PeekOutcome(int fd) {
  const absl::Status readable = AwaitEvents(fd, POLLIN, Clock::Real()->Now() + kMakingNap);
  if (absl::IsDeadlineExceeded(readable)) return PeerOutcome::kUnknown;
  PairOutcomeBytes bytes;
  const ssize_t n = recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (n <= 0) return PeerOutcome::kFailed;
  if (n < static_cast<ssize_t>(bytes.size())) return PeerOutcome::kUnknown;
  const absl::StatusOr<bool> made = DecodePairOutcome(bytes);
  return made.ok() && *made ? PeerOutcome::kMade : PeerOutcome::kFailed;
}

// Waits until `communicator` is made. The peer makes its half meanwhile.
absl::Status AwaitMade(OwnedCommunicator& communicator, int fd, TimePoint deadline) {
  PeerOutcome peer = PeerOutcome::kUnknown;
  for (;;) {
    ASSIGN_OR_RETURN(const bool ready, communicator->Ready());
    if (ready) return absl::OkStatus();
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError("the communicator was not made in time");
    }
    if (peer == PeerOutcome::kUnknown) {
      peer = PeekOutcome(fd);
      if (peer == PeerOutcome::kFailed) {
        return absl::UnavailableError("the peer could not make its half of the communicator");
      }
    } else {
      // Its word waits in the socket; only its end can still be noticed.
      if (AwaitEvents(fd, POLLRDHUP, Clock::Real()->Now() + kMakingNap).ok()) {
        return absl::UnavailableError("the peer left while the communicator was being made");
      }
    }
  }
}

// Makes one half. `*failed` as in OpenPair.
absl::StatusOr<std::unique_ptr<OwnedCommunicator>> MakeHalf(
    const PairOpeningSetup& setup, PairRole role, const PairId& id, int num_ctas,
    std::shared_ptr<void> slot, int fd, TimePoint deadline,
    std::unique_ptr<OwnedCommunicator>* failed) {
  if (setup.gate != nullptr && !setup.gate->BeginCommunicatorChange(kCaptureLimit)) {
    setup.gate->EndCommunicatorChange();
    return absl::UnavailableError("a graph is being captured");
  }
  std::unique_ptr<OwnedCommunicator> owned;
  absl::StatusOr<std::unique_ptr<PairCommunicator>> made =
      setup.communicators->Make(role, id, num_ctas);
  absl::Status status = made.status();
  if (status.ok()) {
    owned = std::make_unique<OwnedCommunicator>(*std::move(made), setup.gate, std::move(slot));
    status = AwaitMade(*owned, fd, deadline);
  }
  if (setup.gate != nullptr) setup.gate->EndCommunicatorChange();
  if (status.ok()) return owned;
  if (owned != nullptr) {
    owned->BeginEnd(/*orderly=*/false, [] {});
    *failed = std::move(owned);
  }
  return status;
}

// Both sides say what became of their half; the pair is made when both are.
absl::StatusOr<OpenedPair> ExchangeOutcomes(absl::StatusOr<std::unique_ptr<OwnedCommunicator>> half,
                                            int fd, TimePoint deadline,
                                            std::unique_ptr<OwnedCommunicator>* failed) {
  // If our half took the whole time, the peer is still owed its word.
  const TimePoint end = std::max(deadline, Clock::Real()->Now() + std::chrono::milliseconds(200));
  absl::Status status = WriteAll(fd, EncodePairOutcome(half.ok()), end);
  PairOutcomeBytes bytes;
  if (status.ok()) status = ReadAll(fd, absl::MakeSpan(bytes), end);
  absl::StatusOr<bool> peer = status.ok() ? DecodePairOutcome(bytes) : status;
  if (half.ok() && peer.ok() && *peer) return OpenedPair{.communicator = *std::move(half)};
  if (half.ok()) {
    (*half)->BeginEnd(/*orderly=*/false, [] {});
    *failed = *std::move(half);
  }
  if (!peer.ok()) return Annotate(peer.status(), "opening an NCCL pair");
  const absl::string_view reason =
      half.ok() ? "the peer could not make its half of the communicator" : half.status().message();
  return OpenedPair{.why_tcp = std::string(reason)};
}

absl::StatusOr<OpenedPair> OpenAsSender(const PairOpeningSetup& setup, int fd, TimePoint deadline,
                                        std::unique_ptr<OwnedCommunicator>* failed) {
  std::shared_ptr<void> slot = setup.budget->Acquire(kRoomLimit);
  PairOpening opening{.num_ctas = static_cast<uint32_t>(setup.num_ctas),
                      .library_version = setup.communicators->library_version(),
                      .device_uuid = setup.communicators->device_uuid()};
  if (slot == nullptr) opening.num_ctas = 0;
  RETURN_IF_ERROR(WriteAll(fd, EncodePairOpening(opening), deadline));
  PairAnswerBytes bytes;
  RETURN_IF_ERROR(Annotate(ReadAll(fd, absl::MakeSpan(bytes), deadline), "waiting for a verdict"));
  ASSIGN_OR_RETURN(const PairAnswer answer, DecodePairAnswer(bytes));
  if (answer.verdict != PairVerdict::kNccl) {
    return OpenedPair{.why_tcp = std::string(PairVerdictText(answer.verdict))};
  }
  if (slot == nullptr || answer.num_ctas < 1 || answer.num_ctas > kCtasMax) {
    return absl::DataLossError("nccl wire: a verdict that does not fit what was offered");
  }
  return ExchangeOutcomes(
      MakeHalf(setup, PairRole::kSender, answer.id, static_cast<int>(answer.num_ctas),
               std::move(slot), fd, deadline, failed),
      fd, deadline, failed);
}

PairVerdict Judge(const PairOpeningSetup& setup, const PairOpening& opening) {
  if (opening.num_ctas == 0) return PairVerdict::kNoRoom;
  const PairCommunicators& ours = *setup.communicators;
  if (opening.device_uuid == ours.device_uuid() && !ours.accepts_shared_device()) {
    return PairVerdict::kSameDevice;
  }
  if (opening.library_version != ours.library_version()) {
    return PairVerdict::kLibraryVersions;
  }
  return PairVerdict::kNccl;
}

absl::StatusOr<OpenedPair> OpenAsReceiver(const PairOpeningSetup& setup, int fd, TimePoint deadline,
                                          std::unique_ptr<OwnedCommunicator>* failed) {
  PairOpeningBytes bytes;
  RETURN_IF_ERROR(Annotate(ReadAll(fd, absl::MakeSpan(bytes), deadline), "waiting for an opening"));
  ASSIGN_OR_RETURN(const PairOpening opening, DecodePairOpening(bytes));
  if (opening.num_ctas > kCtasMax) {
    return absl::DataLossError("nccl wire: an opening with too many thread blocks");
  }
  PairAnswer answer{.verdict = Judge(setup, opening),
                    .num_ctas = std::min(opening.num_ctas, static_cast<uint32_t>(setup.num_ctas))};
  std::shared_ptr<void> slot;
  if (answer.verdict == PairVerdict::kNccl) {
    slot = setup.budget->Acquire(kRoomLimit);
    if (slot == nullptr) answer.verdict = PairVerdict::kNoRoom;
  }
  if (answer.verdict == PairVerdict::kNccl) {
    const absl::StatusOr<PairId> id = setup.communicators->MintId();
    if (id.ok()) {
      answer.id = *id;
    } else {
      LogWarning("no id for a communicator", {{"status", id.status().ToString()}});
      answer.verdict = PairVerdict::kFailed;
    }
  }
  RETURN_IF_ERROR(WriteAll(fd, EncodePairAnswer(answer), deadline));
  if (answer.verdict != PairVerdict::kNccl) {
    return OpenedPair{.why_tcp = std::string(PairVerdictText(answer.verdict))};
  }
  return ExchangeOutcomes(
      MakeHalf(setup, PairRole::kReceiver, answer.id, static_cast<int>(answer.num_ctas),
               std::move(slot), fd, deadline, failed),
      fd, deadline, failed);
}

}  // namespace

absl::StatusOr<OpenedPair> OpenPair(const PairOpeningSetup& setup, PairRole role, int fd,
                                    TimePoint deadline,
                                    std::unique_ptr<OwnedCommunicator>* failed) {
  return role == PairRole::kSender ? OpenAsSender(setup, fd, deadline, failed)
                                   : OpenAsReceiver(setup, fd, deadline, failed);
}

}  // namespace baton::kvtransfer
