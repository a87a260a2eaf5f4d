// The state machine of P: transfers, pairs, chunks, leases. Everything happens on one core thread,
// to which calls of the engine, control messages, wire completions, finished connects and ticks are
// posted; observer calls are posted to the event thread.
//
// Ownership: a transfer is in transfers_ from Begin until its OnQuiescent is posted. A chunk
// belongs to its pair and outlives its transfer: once READY was said, the slot is given back only
// after DROP, after the send's completion, or when the pair is quiescent. A failed pair stays in
// pairs_ (state kClosing) until its wire end is quiescent; a new pair to the same peer may exist
// beside it. Thread rule: constructed anywhere, then owned by the core thread (methods marked "any
// thread" apart).
#ifndef BATON_KVTRANSFER_SENDER_CORE_H_
#define BATON_KVTRANSFER_SENDER_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/active_transfers.h"
#include "kvtransfer/control.h"
#include "kvtransfer/lease_table.h"
#include "kvtransfer/pair_link.h"
#include "kvtransfer/staging_pool.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_setup.h"
#include "kvtransfer/wire.h"
#include "kvtransfer/work_thread.h"

namespace baton::kvtransfer {

class SenderCore {
 public:
  SenderCore(const TransferSetup& setup, ControlDialer* dialer, std::shared_ptr<WorkThread> core,
             WorkThread* events, ActiveTransfers* active);

  void Begin(TransferId id, const PeerAddress& peer, TimePoint deadline,
             TransferSenderObserver* observer);
  void Push(TransferId id, std::vector<SourceRange> ranges);
  void Finish(TransferId id, std::string payload);
  void Cancel(TransferId id);
  // Fails `id` if it still runs.
  void Fail(TransferId id, const absl::Status& status);
  void Tick();
  // Ends everything; `drained` is called once no pair is left.
  void Shutdown(std::function<void()> drained);
  // Whether any time-out is pending.
  bool active() const { return !pairs_.empty() || !transfers_.empty(); }

 private:
  using PeerKey = std::pair<std::string, uint64_t>;

  struct Transfer {
    uint64_t serial = 0;  // Unlike ids, never used twice.
    TransferId id;
    PeerAddress peer;
    TimePoint deadline;
    TransferSenderObserver* observer = nullptr;
    uint64_t pair_serial = 0;  // 0: none.
    std::deque<SourceRange> pending;
    bool queued = false;  // In its pair's turn queue.
    bool finished = false;
    bool final_sent = false;
    bool leased = false;
    std::string payload;
    uint64_t chunks_announced = 0;
    TransferStats done;
  };

  enum class ChunkState { kReady, kPosted, kSent };
  struct Chunk {
    uint64_t transfer_serial = 0;
    TransferId transfer_id;
    ChunkState state = ChunkState::kReady;
    StagingSlotId slot;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    bool done_received = false;
    TimePoint since{};      // Of this state.
    bool orphaned = false;  // Its transfer has ended.
  };

  enum class PairState { kBackoff, kDialling, kConnecting, kOpen, kClosing };
  struct Pair {
    uint64_t serial = 0;
    PeerAddress peer;
    PairState state = PairState::kBackoff;
    TimePoint state_deadline = kNever;
    TimePoint dial_at{};
    TimePoint last_progress{};
    TimePoint idle_since{};
    uint64_t chunk_bytes_max = 0;
    std::unique_ptr<PairLink> link;
    std::thread connecting;
    std::unique_ptr<WireEnd> end;
    uint64_t next_sequence_number = 0;
    std::map<uint64_t, Chunk> chunks;  // By sequence number.
    uint32_t slots_held = 0;
    std::deque<TransferId> turns;            // Transfers with something to announce, round robin.
    std::set<TransferId> transfers;          // Attached, leased ones included.
    std::vector<TransferAbort> owed_aborts;  // To be said once D has said hello.
    bool unquiescent_reported = false;
  };

  struct Backoff {
    TimePoint not_before{};
    uint32_t failures = 0;
  };

  // sender_core.cc: transfers.
  Transfer* Find(TransferId id);
  void Attach(Transfer* transfer);
  void QueueTurn(Transfer* transfer, Pair* pair);
  void CheckDelivered(Transfer* transfer);
  // Removes the transfer; `tell_peer` not empty: TransferAbort goes to D. Posts OnQuiescent last,
  // after `last_event` if there is one.
  void End(Transfer* transfer, const std::string& tell_peer,
           std::function<void(TransferSenderObserver*)> last_event);
  // Now, or as soon as D listens: it need not wait for its own deadline.
  void TellAbort(Pair* pair, TransferAbort message);
  void FailTransfer(Transfer* transfer, const absl::Status& status, bool tell_peer);
  void SweepTransfers(TimePoint now);
  void PublishLevels();

  // sender_pairs.cc: pairs.
  Pair* FindPair(uint64_t serial);
  Pair* LivePair(const PeerAddress& peer);
  absl::StatusOr<Pair*> OpenPair(const PeerAddress& peer);
  void Dial(Pair* pair);
  void OnHello(Pair* pair, const ReceiverHello& hello);
  void OnConnected(uint64_t pair_serial, absl::StatusOr<std::unique_ptr<WireEnd>> end);
  void OnLinkLost(uint64_t pair_serial, const absl::Status& status);
  void FailPair(Pair* pair, const absl::Status& status);
  void ClosePair(Pair* pair, const absl::Status& status);
  // Gives back slots and forgets the pair if nothing of it can touch memory any more.
  bool RetireIfQuiescent(Pair* pair);
  void TickPair(Pair* pair, TimePoint now);
  absl::Status CheckChunkLimits(const Pair& pair, TimePoint now) const;

  // sender_chunks.cc: chunks and messages.
  void OnMessage(uint64_t pair_serial, ControlMessage message);
  void Pump();
  void AnnounceNext(Pair* pair);
  // False when the ranges cannot be read: the pair has failed, and both pointers may dangle.
  bool AnnounceChunk(Pair* pair, Transfer* transfer);
  void SendFinalIfDue(Pair* pair, Transfer* transfer);
  bool MayTakeSlot(const Pair& pair) const;
  void OnGo(Pair* pair, uint64_t sequence_number);
  void OnSent(uint64_t pair_serial, uint64_t sequence_number, const absl::Status& status);
  void OnDone(Pair* pair, const ChunkDone& message);
  void OnDrop(Pair* pair, uint64_t sequence_number);
  void OnPeerFailed(Pair* pair, const TransferFailed& message);
  void OnRenew(Pair* pair, const LeaseRenew& message);
  void OnRelease(Pair* pair, const LeaseRelease& message);
  void ReleaseSlot(Pair* pair, Chunk* chunk);

  const TransferSetup setup_;
  ControlDialer* const dialer_;
  const std::shared_ptr<WorkThread> core_;
  WorkThread* const events_;
  ActiveTransfers* const active_;
  StagingPool staging_;
  LeaseTable leases_;
  uint64_t next_serial_ = 1;
  std::unordered_map<TransferId, std::unique_ptr<Transfer>> transfers_;
  std::map<uint64_t, std::unique_ptr<Pair>> pairs_;  // By serial.
  std::map<PeerKey, Backoff> backoffs_;
  uint64_t last_pumped_pair_ = 0;
  bool shutting_down_ = false;
  std::function<void()> drained_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_SENDER_CORE_H_
