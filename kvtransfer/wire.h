// A wire moves staging slots of bytes between the two processes of one pair. Implementations: local/
// (same process), tcp/, fault/ (decorates another); the conformance suite (wire_conformance.h) holds
// for all of them, and docs/kv_handoff.md is their contract page.
//
// A WireEnd is one end of one pair. Operations are matched by order: the k-th PostReceive of D takes
// the bytes of the k-th PostSend of P; the sequence number travels along and is checked. Posting never
// blocks. Completion callbacks run on a thread of the wire, in order, must not block, and come exactly
// once per operation (with Cancelled after Abort).
//
// ERRORS in completions: DataLoss: length, sequence number or checksum differ from what was posted;
// Unavailable: the peer is gone; Cancelled: aborted. After any error the end is broken: every later
// operation fails, and the pair must be aborted and made anew.
//
// Quiescent means that no posted memory will be read or written any more. It is reached when all
// completions have been called; after Abort() an implementation must get there in bounded time.
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

namespace baton::kvtransfer {

// Thread-safe.
class WireEnd {
 public:
  using Completion = std::function<void(const absl::Status&)>;

  // REQUIRES: Quiescent(), or Abort() and then Quiescent(): the destructor waits for it.
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
  virtual absl::string_view name() const = 0;
  // D: prepares to accept one peer within `limit`; `accepted` is called once, on a thread of the wire.
  virtual absl::StatusOr<WireOffer> Offer(Duration limit, Accepted accepted) = 0;
  // D: withdraws an offer that is not used; `accepted` is called with Cancelled if it was not yet.
  virtual void Withdraw(const WireOffer& offer) = 0;
  // P: connects to an offer; blocks at most `limit`.
  virtual absl::StatusOr<std::unique_ptr<WireEnd>> Connect(const WireOffer& offer,
                                                           Duration limit) = 0;
  // Stops accepting and joins the wire's own threads. REQUIRES: all ends destroyed.
  virtual void Shutdown() = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_WIRE_H_
