#include "kvtransfer/receiver_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kvtransfer/range_copy.h"

namespace baton::kvtransfer {

ReceiverCore::ReceiverCore(const TransferSetup& setup, std::shared_ptr<WorkThread> core,
                           WorkThread* events, ActiveTransfers* active)
    : setup_(setup),
      core_(std::move(core)),
      events_(events),
      active_(active),
      staging_(setup.options.staging_slots, setup.options.staging_slot_bytes,
               setup.options.poison_free_staging,
               AllocateStaging(setup.device, setup.wire->staging_place(),
                               setup.options.staging_slots * setup.options.staging_slot_bytes)) {
  PublishLevels();
}

ReceiverCore::Transfer* ReceiverCore::Find(TransferId id) {
  auto it = transfers_.find(id);
  return it == transfers_.end() ? nullptr : it->second.get();
}

void ReceiverCore::Expect(TransferId id, const std::string& model, Coverage coverage,
                          TimePoint deadline, TransferReceiverObserver* observer) {
  auto owned = std::make_unique<Transfer>();
  Transfer* transfer = owned.get();
  transfer->serial = next_serial_++;
  transfer->id = id;
  transfer->model = model;
  transfer->coverage = std::move(coverage);
  transfer->deadline = deadline;
  transfer->observer = observer;
  held_.erase(id);  // An id that is expected again is a new transfer.
  transfers_[id] = std::move(owned);
  if (shutting_down_) {
    FailTransfer(transfer, absl::CancelledError("the KV transfer is shut down"),
                 TellPeer::kNothing);
  }
  PublishLevels();
}

void ReceiverCore::Cancel(TransferId id) {
  if (Transfer* transfer = Find(id)) {
    if (setup_.counters != nullptr) ++setup_.counters->cancelled;
    End(transfer, TellPeer::kReleased, "", nullptr);
    Grant();
    return;
  }
  ConfirmProgress(id);  // Received already: only the lease is left to give back.
}

void ReceiverCore::ConfirmProgress(TransferId id) {
  auto it = held_.find(id);
  if (it == held_.end()) return;
  if (Pair* pair = FindPair(it->second.pair_serial)) pair->link->Send(LeaseRelease{id});
  held_.erase(it);
}

void ReceiverCore::End(Transfer* transfer, TellPeer tell_peer, const std::string& reason,
                       std::function<void(TransferReceiverObserver*)> last_event) {
  const TransferId id = transfer->id;
  if (Pair* pair = FindPair(transfer->pair_serial)) {
    // Before the DROPs, so that P knows why.
    if (tell_peer == TellPeer::kFailed) pair->link->Send(TransferFailed{id, reason});
    if (tell_peer == TellPeer::kReleased) pair->link->Send(LeaseRelease{id});
    std::vector<uint64_t> unwanted;
    for (auto& [sequence_number, chunk] : pair->chunks) {
      if (chunk.transfer_serial != transfer->serial) continue;
      chunk.orphaned = true;  // If posted, it arrives in its slot and is not scattered.
      if (!chunk.posted) unwanted.push_back(sequence_number);
    }
    for (uint64_t sequence_number : unwanted) DropChunk(pair, sequence_number);
    pair->transfers.erase(id);
  }
  events_->Post(
      [observer = transfer->observer, id, active = active_, last_event = std::move(last_event)] {
        if (last_event) last_event(observer);
        active->Remove(id);
        observer->OnQuiescent(id);
      });
  transfers_.erase(id);
  PublishLevels();
}

void ReceiverCore::FailTransfer(Transfer* transfer, const absl::Status& status,
                                TellPeer tell_peer) {
  if (setup_.counters != nullptr) ++setup_.counters->failed;
  End(transfer, tell_peer, std::string(status.message()),
      [id = transfer->id, status](TransferReceiverObserver* observer) {
        observer->OnFailed(id, status);
      });
}

void ReceiverCore::CheckReceived(Transfer* transfer) {
  if (!transfer->final_received || transfer->received.chunks != transfer->chunks_announced) return;
  if (absl::Status s = transfer->coverage.CheckComplete(); !s.ok()) {
    FailTransfer(transfer, s, TellPeer::kFailed);
    return;
  }
  if (setup_.counters != nullptr) ++setup_.counters->delivered;
  Hold(transfer);
  End(transfer, TellPeer::kNothing, "",
      [id = transfer->id, payload = std::move(transfer->payload), stats = transfer->received](
          TransferReceiverObserver* observer) { observer->OnReceived(id, payload, stats); });
}

void ReceiverCore::Hold(Transfer* transfer) {
  Pair* pair = FindPair(transfer->pair_serial);
  // Also the acknowledgement of the final payload: P calls OnDelivered on the first renewal.
  pair->link->Send(LeaseRenew{{transfer->id}});
  if (held_.size() >= setup_.options.leases_max) {
    auto oldest = std::min_element(held_.begin(), held_.end(), [](const auto& a, const auto& b) {
      return a.second.until < b.second.until;
    });
    held_.erase(oldest);  // P's lease runs out.
  }
  held_[transfer->id] = {pair->serial,
                         SaturatingAdd(setup_.clock->Now(), setup_.options.lease_total_limit)};
}

void ReceiverCore::RenewHeld(Pair* pair, TimePoint now) {
  if (SaturatingAdd(pair->renewed_at, setup_.options.lease_renew_interval) > now) return;
  pair->renewed_at = now;
  LeaseRenew renew;
  for (const auto& [id, held] : held_) {
    if (held.pair_serial == pair->serial) renew.transfer_ids.push_back(id);
  }
  if (!renew.transfer_ids.empty()) pair->link->Send(std::move(renew));
}

void ReceiverCore::SweepTransfers(TimePoint now) {
  std::vector<TransferId> expired;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->deadline <= now) expired.push_back(id);
  }
  for (TransferId id : expired) {
    FailTransfer(Find(id), absl::DeadlineExceededError("the transfer's deadline has passed"),
                 TellPeer::kFailed);
  }
  std::erase_if(held_, [&](const auto& entry) { return entry.second.until <= now; });
}

void ReceiverCore::Tick() {
  const TimePoint now = setup_.clock->Now();
  SweepTransfers(now);
  std::vector<uint64_t> serials;
  for (const auto& [serial, pair] : pairs_) serials.push_back(serial);
  for (uint64_t serial : serials) {
    if (Pair* pair = FindPair(serial)) TickPair(pair, now);
  }
  Grant();
  PublishLevels();
}

void ReceiverCore::Shutdown(std::function<void()> drained) {
  shutting_down_ = true;
  drained_ = std::move(drained);
  std::vector<TransferId> ids;
  for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  for (TransferId id : ids) {
    FailTransfer(Find(id), absl::CancelledError("the KV transfer shuts down"), TellPeer::kFailed);
  }
  std::vector<uint64_t> serials;
  for (const auto& [serial, pair] : pairs_) serials.push_back(serial);
  for (uint64_t serial : serials) {
    if (Pair* pair = FindPair(serial)) ClosePair(pair, absl::CancelledError("shutting down"));
  }
  if (pairs_.empty() && drained_) std::exchange(drained_, nullptr)();
}

void ReceiverCore::PublishLevels() {
  TransferCounters* counters = setup_.counters.get();
  if (counters == nullptr) return;
  counters->pairs = pairs_.size();
  counters->staging_slots_free = staging_.num_free();
  counters->staging_slots_quarantined = staging_.num_quarantined();
}

}  // namespace baton::kvtransfer
