// The state machine of D: expected transfers, pairs that prefill workers opened, chunks. Everything
// happens on one core thread, to which calls of the engine, control messages, wire completions and
// ticks are posted; observer calls are posted to the event thread.
//
// Only this thread writes destination memory (the scatter), and only for a transfer that is still
// wanted: so a transfer is quiescent as soon as it has ended, whatever its chunks in flight do to
// staging slots. A slot is given back when its receive has completed, or, after a failure, when the
// wire end is quiescent.
// Thread rule: constructed anywhere, then owned by the core thread.
#ifndef BATON_KVTRANSFER_RECEIVER_CORE_H_
#define BATON_KVTRANSFER_RECEIVER_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvtransfer/active_transfers.h"
#include "kvtransfer/control.h"
#include "kvtransfer/coverage.h"
#include "kvtransfer/hello.h"
#include "kvtransfer/pair_link.h"
#include "kvtransfer/staging_pool.h"
#include "kvtransfer/transfer.h"
#include "kvtransfer/transfer_setup.h"
#include "kvtransfer/wire.h"
#include "kvtransfer/work_thread.h"

namespace baton::kvtransfer {

class ReceiverCore {
 public:
  ReceiverCore(const TransferSetup& setup, std::shared_ptr<WorkThread> core, WorkThread* events,
               ActiveTransfers* active);

  void AcceptLink(std::shared_ptr<ControlLink> link);
  void Expect(TransferId id, const std::string& model, Coverage coverage, TimePoint deadline,
              TransferReceiverObserver* observer);
  void Cancel(TransferId id);
  void ConfirmProgress(TransferId id);
  void Tick();
  void Shutdown(std::function<void()> drained);
  bool active() const { return !pairs_.empty() || !transfers_.empty(); }

 private:
  struct Transfer {
    uint64_t serial = 0;  // Unlike ids, never used twice.
    TransferId id;
    std::string model;
    Coverage coverage;
    TimePoint deadline;
    TransferReceiverObserver* observer = nullptr;
    uint64_t pair_serial = 0;  // 0 until a sender has named the transfer.
    uint64_t chunks_announced = 0;
    TransferStats received;
    bool final_received = false;
    std::string payload;
  };

  // Received, and P still keeps it for us.
  struct Held {
    uint64_t pair_serial = 0;
    TimePoint until{};  // P does not keep it longer.
  };

  struct Chunk {
    uint64_t transfer_serial = 0;
    TransferId transfer_id;
    std::vector<absl::Span<std::byte>> destinations;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    bool posted = false;  // Else it waits for a slot.
    bool orphaned = false;
    StagingSlotId slot;
    TimePoint since{};
  };

  // kRefused: the refusal is on its way; the link is closed by P, or by us after connect_limit.
  enum class PairState { kHello, kRefused, kAccepting, kOpen, kClosing };
  struct Pair {
    uint64_t serial = 0;
    uint64_t sender_instance_id = 0;
    PairState state = PairState::kHello;
    TimePoint state_deadline = kNever;
    TimePoint last_progress{};
    std::unique_ptr<PairLink> link;
    KvLayouts layouts;  // Of the sender.
    WireOffer offer;
    bool offer_open = false;  // `accepted` has not been called yet.
    std::unique_ptr<WireEnd> end;
    uint64_t next_sequence_number = 0;
    std::map<uint64_t, Chunk> chunks;
    std::deque<uint64_t> waiting;  // Sequence numbers, in order of READY.
    uint32_t slots_held = 0;
    std::set<TransferId> transfers;
    TimePoint renewed_at{};
    bool unquiescent_reported = false;
  };

  // receiver_core.cc: transfers.
  Transfer* Find(TransferId id);
  enum class TellPeer { kNothing, kFailed, kReleased };
  void End(Transfer* transfer, TellPeer tell_peer, const std::string& reason,
           std::function<void(TransferReceiverObserver*)> last_event);
  void FailTransfer(Transfer* transfer, const absl::Status& status, TellPeer tell_peer);
  void CheckReceived(Transfer* transfer);
  void Hold(Transfer* transfer);
  void RenewHeld(Pair* pair, TimePoint now);
  void SweepTransfers(TimePoint now);
  void PublishLevels();

  // receiver_pairs.cc: pairs.
  Pair* FindPair(uint64_t serial);
  void OnHello(Pair* pair, const SenderHello& hello);
  absl::Status OfferWire(Pair* pair);
  void Refuse(Pair* pair, const absl::Status& status);
  void OnAccepted(uint64_t pair_serial, absl::StatusOr<std::unique_ptr<WireEnd>> end);
  void OnLinkLost(uint64_t pair_serial, const absl::Status& status);
  void FailPair(Pair* pair, const absl::Status& status);
  void ClosePair(Pair* pair, const absl::Status& status);
  bool RetireIfQuiescent(Pair* pair);
  void TickPair(Pair* pair, TimePoint now);
  absl::Status CheckChunkLimit(const Pair& pair, TimePoint now) const;

  // receiver_chunks.cc: chunks and messages.
  void OnMessage(uint64_t pair_serial, ControlMessage message);
  void OnReady(Pair* pair, const ChunkReady& message);
  // The transfer a sender names, bound to its pair from now on; fails with what is wrong with it.
  absl::StatusOr<Transfer*> Bind(Pair* pair, TransferId id);
  void DropChunk(Pair* pair, uint64_t sequence_number);
  void OnFinal(Pair* pair, const TransferFinal& message);
  void OnAbort(Pair* pair, const TransferAbort& message);
  bool MayTakeSlot(const Pair& pair) const;
  void Grant();
  void Post(Pair* pair, uint64_t sequence_number, StagingSlotId slot);
  void OnReceived(uint64_t pair_serial, uint64_t sequence_number, const absl::Status& status);
  void Scatter(Pair* pair, uint64_t sequence_number, Chunk* chunk);
  void ReleaseSlot(Pair* pair, Chunk* chunk);

  const TransferSetup setup_;
  const std::shared_ptr<WorkThread> core_;
  WorkThread* const events_;
  ActiveTransfers* const active_;
  StagingPool staging_;
  uint64_t next_serial_ = 1;
  std::unordered_map<TransferId, std::unique_ptr<Transfer>> transfers_;
  std::unordered_map<TransferId, Held> held_;
  std::map<uint64_t, std::unique_ptr<Pair>> pairs_;  // By serial.
  uint64_t last_granted_pair_ = 0;
  bool shutting_down_ = false;
  std::function<void()> drained_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_RECEIVER_CORE_H_
