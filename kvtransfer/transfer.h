// The KV hand-over as the engine loops see it: P pushes ranges of its blocks, D receives them into
// its own. This header is the contract; docs/kv_handoff.md draws the states.
//
//  - Bytes move over a Wire (wire.h) through staging slots only; control messages (control.h) move
//    over a ControlLink. This layer knows byte ranges, not layers, heads or models.
//  - Per chunk: P gathers ranges into a staging slot and says READY(seq); D takes a slot, posts its
//    receive and says GO(seq); P posts its send; D checks, scatters and says DONE(seq, checksum).
//    Only DONE proves delivery. Once READY is said the send is certain if GO comes: a cancel takes
//    effect between chunks, and D answers READY for what it no longer wants with DROP.
//  - Memory handed in here (source ranges of P, destination ranges of D) must stay valid and, on P,
//    unmodified until OnQuiescent for that transfer. Until then its blocks carry the `wire` flag,
//    and `quarantined` once the transfer has failed. OnQuiescent always comes, exactly once, for
//    every transfer begun or expected, whatever fails; if a wire cannot prove quiescence within
//    quiescence_limit, the process exits rather than let the memory be used again.
//  - Time-outs run on a thread of their own: an idle or wedged engine still expires them.
//
// Thread rule: TransferSender and TransferReceiver are thread-safe. A worker has one of each for
// all its models; each Begin and Expect names the observer of its engine loop. All observer calls
// of one sender (or receiver) come from its one event thread, with no internal lock held, never
// from inside a call of the engine: an observer may call back, except Shutdown and the destructor.
// It must not block (push into the loop's queue). An observer must outlive the OnQuiescent of all
// its transfers.
#ifndef BATON_KVTRANSFER_TRANSFER_H_
#define BATON_KVTRANSFER_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/strong_id.h"

namespace baton::kvtransfer {

// Bytes of the payload of Finish.
inline constexpr size_t kTransferPayloadBytesMax = 4096;

// A range of one logical block (its index in the sequence's block table) of P, and where its bytes
// lie now.
struct SourceRange {
  uint32_t logical_block = 0;
  uint64_t offset = 0;  // Within the block, bytes.
  absl::Span<const std::byte> bytes;
};

// Where D wants the bytes of one logical block. Chunks that name another logical block, or leave
// [0, bytes.size()), fail the transfer.
struct DestinationBlock {
  uint32_t logical_block = 0;
  absl::Span<std::byte> bytes;
};

struct TransferStats {
  uint64_t bytes = 0;
  uint64_t chunks = 0;
};

// Who P sends to.
struct PeerAddress {
  std::string control_address;  // Of D's transfer service.
  uint64_t instance_id = 0;     // Of D's process; a restarted D refuses.
};

class TransferSenderObserver {
 public:
  virtual ~TransferSenderObserver() = default;
  // All chunks and the final payload have arrived at D (DONE for all). The lease starts or goes on.
  virtual void OnDelivered(TransferId id, const TransferStats& stats) = 0;
  // D has confirmed progress, or does not want the KV: the lease is over.
  virtual void OnReleased(TransferId id) = 0;
  // The transfer will not be delivered, or its lease has expired (DeadlineExceeded). No OnDelivered
  // or OnReleased follows.
  virtual void OnFailed(TransferId id, const absl::Status& status) = 0;
  // Last call for `id`: nothing reads the source memory any more.
  virtual void OnQuiescent(TransferId id) = 0;
  // The pair is broken and torn down; the router should stop choosing it for a while. Called once
  // per failure for each observer that has a transfer or lease on the pair, before their OnFailed.
  virtual void OnPairFailed(const PeerAddress& peer, const absl::Status& status) = 0;
};

class TransferSender {
 public:
  virtual ~TransferSender() = default;
  // Opens the pair if needed (in the background). `observer` gets the events of this transfer.
  // ERRORS: AlreadyExists: id in use; ResourceExhausted: too many transfers; InvalidArgument:
  // `model` is none of this worker's; Unavailable: shut down. No observer call follows an error.
  virtual absl::Status Begin(TransferId id, const std::string& model, const PeerAddress& peer,
                             TimePoint deadline, TransferSenderObserver* observer) = 0;
  // Appends ranges, in the order they are to travel. Unknown ids (failed meanwhile) are ignored.
  virtual void Push(TransferId id, std::vector<SourceRange> ranges) = 0;
  // Nothing more will be pushed; `payload` (<= 4 KiB) reaches D's OnReceived after the last chunk.
  virtual void Finish(TransferId id, std::string payload) = 0;
  // P gives up, or does not need the lease any more; D is told. Only OnQuiescent follows.
  virtual void Cancel(TransferId id) = 0;
  // Refuses new transfers, fails the running ones, tears down all pairs and joins all threads.
  virtual void Shutdown() = 0;
};

class TransferReceiverObserver {
 public:
  virtual ~TransferReceiverObserver() = default;
  // Every announced chunk was scattered and checked, and every destination block was covered.
  virtual void OnReceived(TransferId id, const std::string& payload,
                          const TransferStats& stats) = 0;
  // The transfer cannot complete. No OnReceived follows.
  virtual void OnFailed(TransferId id, const absl::Status& status) = 0;
  // Last call for `id`: nothing writes the destination memory any more.
  virtual void OnQuiescent(TransferId id) = 0;
};

class TransferReceiver {
 public:
  virtual ~TransferReceiver() = default;
  // Registers a transfer before P is told to prefill. `blocks` may be empty (D has all blocks and
  // only waits for the payload). ERRORS: as Begin; InvalidArgument also for a logical block named
  // twice.
  virtual absl::Status Expect(TransferId id, const std::string& model,
                              std::vector<DestinationBlock> blocks, TimePoint deadline,
                              TransferReceiverObserver* observer) = 0;
  // D does not want the transfer (any more): P is told. Only OnQuiescent follows.
  virtual void Cancel(TransferId id) = 0;
  // D has completed a step on the received KV: P's lease is released. After OnReceived only.
  virtual void ConfirmProgress(TransferId id) = 0;
  virtual void Shutdown() = 0;
};

// Pieces in which KV goes best through memory of the host.
inline constexpr uint64_t kHostPieceBytes = uint64_t{4} << 20;

// Limits and times of both sides. Tests shorten them.
struct TransferOptions {
  uint64_t staging_slot_bytes = kHostPieceBytes;
  uint32_t staging_slots = 8;
  uint32_t transfers_max = 4096;
  uint32_t pairs_max = 64;
  // A chunk after GO must have arrived within this.
  Duration chunk_limit = std::chrono::seconds(2);
  // Dialling and the hello of both sides.
  Duration connect_limit = std::chrono::seconds(2);
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  Duration heartbeat_limit = std::chrono::seconds(2);
  // P keeps a lease at most this long after its last renewal, and at most this long in all; when it
  // has this many, the oldest ends for a new one.
  Duration lease_limit = std::chrono::seconds(10);
  Duration lease_total_limit = std::chrono::minutes(2);
  uint32_t leases_max = 1024;
  Duration lease_renew_interval = std::chrono::seconds(2);
  // From abort to the proof that nothing moves any more; then the process exits.
  Duration quiescence_limit = std::chrono::seconds(20);
  // P closes a pair that nothing uses (a GPU communicator costs memory).
  Duration pair_idle_limit = std::chrono::minutes(10);
  // Longest wait before a pair that failed is dialled again.
  Duration redial_limit = std::chrono::seconds(1);
  // How often time-outs are looked at, in real time.
  Duration poll_interval = std::chrono::milliseconds(10);
  // Tests: free staging slots hold a pattern that is checked before they are used again.
  bool poison_free_staging = false;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_TRANSFER_H_
