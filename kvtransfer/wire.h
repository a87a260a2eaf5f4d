// A wire moves staging slots of bytes between the two processes of one pair. Implementations:
// local/ (same process), tcp/, fault/ (decorates another); the conformance suite
// (wire_conformance.h) holds for all of them, and docs/kv_handoff.md is their contract page.
//
// A WireEnd is one end of one pair. Bytes go one way: the end that connected (P) sends, the end
// that accepted (D) receives. Operations are matched by order: the k-th PostReceive of D takes the
// bytes of the k-th PostSend of P; the sequence number travels along and is checked, and so is the
// length (0 is a legal length). Posting never blocks. Completion callbacks run on a thread of the
// wire, in order, must not block nor destroy their end, and come exactly once per operation (with
// Cancelled after Abort). A completed send proves nothing about delivery.
//
// ERRORS in completions: DataLoss: length, sequence number or checksum differ from what was posted;
// Unavailable: the peer is gone; Cancelled: aborted; FailedPrecondition: posted in the direction
// that this end does not have. After any error the end is broken: every later operation fails, and
// the pair must be aborted and made anew.
//
// Quiescent means that no posted memory will be read or written any more. It is reached when all
// completions have been called; after Abort() an implementation must get there in bounded time. The
// memory of one operation is not touched after its completion.
#ifndef BATON_KVTRANSFER_WIRE_H_
#define BATON_KVTRANSFER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "device/staging_place.h"

namespace baton::kvtransfer {

// Limits of one end: operations open at a time, and bytes of one operation. More is a programmer's
// error: staging slots bound both.
inline constexpr size_t kWireOperationsMax = 4096;
inline constexpr uint64_t kWireOperationBytesMax = uint64_t{1} << 30;
// Offers open at a time; more are refused with ResourceExhausted.
inline constexpr size_t kWireOffersMax = 1024;

// Thread-safe.
class WireEnd {
 public:
  using Completion = std::function<void(const absl::Status&)>;

  // REQUIRES: Quiescent(), or Abort() and then Quiescent(): the destructor aborts and waits for it.
  virtual ~WireEnd() = default;
  // `bytes` must stay valid and unmodified until the completion.
  virtual void PostSend(uint64_t sequence_number, absl::Span<const std::byte> bytes,
                        Completion done) = 0;
  // Takes exactly bytes.size() bytes.
  virtual void PostReceive(uint64_t sequence_number, absl::Span<std::byte> bytes,
                           Completion done) = 0;
  // Idempotent; never blocks.
  virtual void Abort(const absl::Status& reason) = 0;
  virtual bool Quiescent() const = 0;
  // The sender's end: larger operations gain nothing. Constant.
  virtual uint64_t piece_bytes_max() const { return kWireOperationBytesMax; }
};

// The receiving side's way to accept wires. D makes an offer per pair; P connects with it.
struct WireOffer {
  std::string address;  // What P connects to; meaning is the wire's own.
  std::string token;    // One-time secret of this pair.
};

// One per process and kind of wire. Thread-safe.
class Wire {
 public:
  using Accepted = std::function<void(absl::StatusOr<std::unique_ptr<WireEnd>>)>;

  virtual ~Wire() = default;
  // Both sides of a pair must have the same; "auto" goes with "tcp" and "nccl" too (hello.h).
  virtual absl::string_view name() const = 0;
  // Where the staging slots must lie that its ends are given.
  virtual StagingPlace staging_place() const { return StagingPlace::kHost; }
  // D: prepares to accept one peer within `limit`; `accepted` is called exactly once, on a thread
  // of the wire (or inside Withdraw or Shutdown), must not block and may destroy the end it is
  // given. ERRORS through `accepted`: DeadlineExceeded: nobody came; Cancelled: withdrawn or shut
  // down.
  virtual absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) = 0;
  // D: withdraws an offer that is not used; `accepted` is called with Cancelled if it was not yet.
  virtual void Withdraw(const WireOffer& offer) = 0;
  // P: connects to an offer; blocks at most `limit`. ERRORS: InvalidArgument: not an address of
  // this wire; Unavailable: unreachable, or offer unknown, expired, used up or withdrawn;
  // DeadlineExceeded.
  virtual absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                           Duration limit) = 0;
  // Stops accepting and joins the wire's own threads. Idempotent. REQUIRES: all ends destroyed.
  virtual void Shutdown() = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_H_
